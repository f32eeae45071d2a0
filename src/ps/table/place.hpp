// Where an id belongs: which server has its row, and where it lies there.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** A bijection of 64-bit numbers that mixes their bits (MurmurHash3's finaliser). */
constexpr std::uint64_t mix64(std::uint64_t x) {
  x ^= x >> 33U;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33U;
  x *= 0xc4ceb9fe1a85ec53ULL;
  x ^= x >> 33U;
  return x;
}

/**
 * With Split::hash the numbers of 64 bits are cut into as many intervals as there are servers, and
 * an id's hash lies in that of its server: so files that hold intervals of hashes suit any number
 * of servers. `within` says where in its server's interval, as a fraction of 2^64: shards and slots
 * come from that, and all its bits vary whatever the number of servers.
 */
struct IdPlace {
  int server;
  std::uint64_t within;
};

inline IdPlace place_of(std::int64_t id, Split split, int servers) {
  const std::uint64_t hash = mix64(static_cast<std::uint64_t>(id));
  if (split == Split::mod) {
    const std::int64_t remainder = id % servers;
    return {static_cast<int>(remainder < 0 ? remainder + servers : remainder), hash};
  }
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(hash) * static_cast<unsigned>(servers);
  return {static_cast<int>(product >> 64U), static_cast<std::uint64_t>(product)};
}

/** Numbers from `first` to `last`, both included, or none. */
struct Interval {
  std::uint64_t first = 1;
  std::uint64_t last = 0;
  bool empty() const { return first > last; }
};

/** Which IdPlace::within the ids of a server have whose hashes are in that interval. */
inline Interval within_of(const Interval& hashes, Split split, int server, int servers) {
  if (split == Split::mod || hashes.empty()) return hashes;
  __extension__ using Wide = unsigned __int128;
  const auto count = static_cast<unsigned>(servers);
  const auto begin_of = [&](int which) {  // the least hash of a server, or 2^64
    return ((static_cast<Wide>(static_cast<unsigned>(which)) << 64U) + count - 1) / count;
  };
  const Wide first = std::max<Wide>(hashes.first, begin_of(server));
  const Wide last = std::min<Wide>(hashes.last, begin_of(server + 1) - 1);
  if (first > last) return {};
  return {static_cast<std::uint64_t>(first * count), static_cast<std::uint64_t>(last * count)};
}

}  // namespace tutti::ps
