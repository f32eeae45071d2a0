// SipHash-2-4: a keyed hash from which nobody without the key learns anything.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

/** The 128 bits of the key, little-endian. */
struct SipKey {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
};

/** J.-P. Aumasson and D. J. Bernstein, "SipHash: a fast short-input PRF", 2012. */
inline std::uint64_t siphash(const SipKey& key, std::span<const std::byte> data) {
  std::uint64_t a = key.low ^ 0x736F6D6570736575ULL;
  std::uint64_t b = key.high ^ 0x646F72616E646F6DULL;
  std::uint64_t c = key.low ^ 0x6C7967656E657261ULL;
  std::uint64_t d = key.high ^ 0x7465646279746573ULL;
  const auto mix = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      a += b;
      c += d;
      b = std::rotl(b, 13) ^ a;
      d = std::rotl(d, 16) ^ c;
      a = std::rotl(a, 32);
      c += b;
      a += d;
      b = std::rotl(b, 17) ^ c;
      d = std::rotl(d, 21) ^ a;
      c = std::rotl(c, 32);
    }
  };
  const auto absorb = [&](std::uint64_t word) {
    d ^= word;
    mix(2);
    a ^= word;
  };
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    word |= std::to_integer<std::uint64_t>(data[i]) << 8 * (i % 8);
    if (i % 8 != 7) continue;
    absorb(word);
    word = 0;
  }
  absorb(word | static_cast<std::uint64_t>(data.size()) << 56U);
  c ^= 0xFF;
  mix(4);
  return a ^ b ^ c ^ d;
}

}  // namespace tutti
