// Computes contributions whose order of additions shows, and their sums.
#include "support/rough.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "support/world.hpp"

namespace tutti::test {
namespace {

/** A random number of its own for each rank and element. */
constexpr std::uint64_t random_bits(int rank, std::int64_t i) {  // splitmix64
  std::uint64_t bits = (static_cast<std::uint64_t>(rank) << 40U) + static_cast<std::uint64_t>(i);
  bits = (bits + 1) * 0x9E3779B97F4A7C15U;
  bits = (bits ^ (bits >> 30U)) * 0xBF58476D1CE4E5B9U;
  bits = (bits ^ (bits >> 27U)) * 0x94D049BB133111EBU;
  return bits ^ (bits >> 31U);
}

/** One with a sign, an exponent from -30 to 30 and 12 bits of a mantissa, of random ones. */
constexpr double number_of(std::uint64_t bits) {
  constexpr std::uint64_t kBias = 1023;
  const std::uint64_t sign = bits & 0x8000U;
  const std::uint64_t exponent = kBias - 30 + (bits >> 40U) % 61;
  return std::bit_cast<double>(sign << 48U | exponent << 52U | (bits % 4096) << 40U);
}

template <class T>
void add(std::vector<T>& sum, const std::vector<T>& more) {
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += more[i];
}

}  // namespace

template <class T>
std::vector<T> rough(int rank, std::int64_t count) {
  std::vector<T> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) {
    values[static_cast<std::size_t>(i)] = static_cast<T>(number_of(random_bits(rank, i)));
  }
  return values;
}

template <class T>
std::vector<T> sum_in_order(std::int64_t count, T factor) {
  const std::vector<int>& hosts = world().hosts;
  std::vector<std::vector<T>> partial;  // one a host, in the order of the lowest rank
  std::map<int, std::size_t> places;
  for (std::size_t rank = 0; rank < hosts.size(); ++rank) {
    std::vector<T> mine = rough<T>(static_cast<int>(rank), count);
    for (T& value : mine) value *= factor;
    const auto [place, is_new] = places.emplace(hosts[rank], partial.size());
    if (is_new) {
      partial.push_back(std::move(mine));
    } else {
      add(partial[place->second], mine);
    }
  }
  std::vector<T> total = std::move(partial.front());
  for (std::size_t host = 1; host < partial.size(); ++host) add(total, partial[host]);
  return total;
}

template std::vector<float> rough<float>(int rank, std::int64_t count);
template std::vector<double> rough<double>(int rank, std::int64_t count);
template std::vector<float> sum_in_order<float>(std::int64_t count, float factor);
template std::vector<double> sum_in_order<double>(std::int64_t count, double factor);

}  // namespace tutti::test
