// XXH64: a fast hash that notices damaged data. It is no protection from those who want to deceive.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tutti {

/** Y. Collet's xxHash, the variant of 64 bits. Reads numbers in the byte order of this machine. */
inline std::uint64_t xxhash64(std::span<const std::byte> data, std::uint64_t seed = 0) {
  constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87ULL;
  constexpr std::uint64_t kPrime2 = 0xC2B2AE3D27D4EB4FULL;
  constexpr std::uint64_t kPrime3 = 0x165667B19E3779F9ULL;
  constexpr std::uint64_t kPrime4 = 0x85EBCA77C2B2AE63ULL;
  constexpr std::uint64_t kPrime5 = 0x27D4EB2F165667C5ULL;
  const std::byte* at = data.data();
  const std::byte* const end = at + data.size();
  const auto take = [&]<class Word>(Word word) {
    std::memcpy(&word, at, sizeof word);
    at += sizeof word;
    return word;
  };
  const auto round = [](std::uint64_t lane, std::uint64_t word) {
    return std::rotl(lane + word * kPrime2, 31) * kPrime1;
  };

  std::uint64_t hash = seed + kPrime5;
  if (data.size() >= 32) {
    std::array<std::uint64_t, 4> lanes{seed + kPrime1 + kPrime2, seed + kPrime2, seed,
                                       seed - kPrime1};
    while (end - at >= 32) {
      for (std::uint64_t& lane : lanes) lane = round(lane, take(std::uint64_t{}));
    }
    hash = std::rotl(lanes[0], 1) + std::rotl(lanes[1], 7) + std::rotl(lanes[2], 12) +
           std::rotl(lanes[3], 18);
    for (const std::uint64_t lane : lanes) hash = (hash ^ round(0, lane)) * kPrime1 + kPrime4;
  }
  hash += data.size();
  while (end - at >= 8) {
    hash = std::rotl(hash ^ round(0, take(std::uint64_t{})), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash = std::rotl(hash ^ take(std::uint32_t{}) * kPrime1, 23) * kPrime2 + kPrime3;
  }
  while (at != end) hash = std::rotl(hash ^ take(std::uint8_t{}) * kPrime5, 11) * kPrime1;
  hash = (hash ^ (hash >> 33U)) * kPrime2;
  hash = (hash ^ (hash >> 29U)) * kPrime3;
  return hash ^ (hash >> 32U);
}

}  // namespace tutti
