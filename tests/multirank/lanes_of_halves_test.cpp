// Long sums of 16 bits that round have the same bits in lanes and by the leaders.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "multirank/lanes.hpp"
#include "support/data.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

/** Elements begin anew after so many: a prime, so that no shares or windows begin alike. */
constexpr std::size_t kPeriod = 65537;

/** What `rank` contributes, of both signs, whose sums overflow nothing: every second magnitude is
 * from 2^-8 to 2^8, and sums round; the others are 2^13, or so little that it depends on the order
 * of additions what of them is left. */
template <class T>
std::vector<T> unequal(int rank) {
  std::mt19937_64 random(static_cast<std::uint64_t>(rank) + 1);
  std::vector<T> values(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const std::uint64_t bits = random();
    const int exponent = static_cast<int>(bits >> 40U) % 16 - 8;
    double magnitude = std::ldexp(static_cast<double>(bits % 1024) / 1024 + 1, exponent);
    if (i % 2 != 0) magnitude = (bits & 0x10000U) != 0 ? 8192 : std::ldexp(magnitude, -8);
    values[i] = element<T>((bits & 0x8000U) != 0 ? -magnitude : magnitude);
  }
  return values;
}

/** The sum of `factor` times each, in float, divided by `divisor`; rounded once. */
template <class T>
std::vector<T> sum_of(const std::vector<std::vector<T>>& parts, float factor, float divisor) {
  std::vector<T> sums(kPeriod);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    float sum = to_float(parts[0][i]) * factor;
    for (std::size_t part = 1; part < parts.size(); ++part) {
      sum += to_float(parts[part][i]) * factor;
    }
    sums[i] = element<T>(static_cast<double>(sum / divisor));
  }
  return sums;
}

/** Of each host what its ranks contribute, in the order in which they are added. */
template <class T>
std::vector<std::vector<std::vector<T>>> by_host() {
  const Layout layout(world().hosts);
  std::vector<std::vector<std::vector<T>>> contributions;
  for (int host = 0; host < layout.host_count(); ++host) {
    contributions.emplace_back();
    for (const int rank : layout.ranks_of(host)) {
      contributions.back().push_back(unequal<T>(rank));
    }
  }
  return contributions;
}

/** Rounded once on each host and once between them. An average is divided on the hosts by the ranks
 * of the largest, and at the end by all. */
template <class T>
std::vector<T> expected(const Reduce& reduce, bool from_the_last_host = false) {
  const Layout layout(world().hosts);
  const bool is_average = reduce.kind == ReduceKind::average;
  const auto of_host = static_cast<float>(is_average ? layout.largest_host() : 1);
  const auto factor =
      static_cast<float>(reduce.kind == ReduceKind::premul_sum ? reduce.factor : 1.0);
  std::vector<std::vector<T>> sums;
  for (const auto& contributions : by_host<T>()) {
    sums.push_back(sum_of(contributions, factor, of_host));
  }
  if (from_the_last_host) std::reverse(sums.begin(), sums.end());
  return sum_of(sums, of_host, static_cast<float>(is_average ? layout.rank_count() : 1));
}

/** Where `data` has other bits than `period` again and again. */
template <class T>
std::string difference(const std::vector<T>& data, const std::vector<T>& period) {
  for (std::size_t begin = 0; begin < data.size(); begin += kPeriod) {
    const std::size_t length = std::min(kPeriod, data.size() - begin);
    for (std::size_t i = 0; i < length; ++i) {
      if (data[begin + i] == period[i]) continue;
      return "element " + std::to_string(begin + i) + " is " +
             std::to_string(number(data[begin + i])) + ", not " + std::to_string(number(period[i]));
    }
  }
  return "";
}

class LanesOfHalves : public LanesTest {
 protected:
  template <class T>
  static void check_sums(Communicator& comm) {
    const DType dtype = DTypeOf<T>::value;
    const std::vector<T> own = unequal<T>(comm.global_rank());
    std::vector<T> data(static_cast<std::size_t>(fewest()) / sizeof(T) + 17);
    int in_lanes = 0;
    for (const Reduce& reduce : {Reduce(), Reduce(Reduce::average), Reduce::premul_sum(0.3)}) {
      const std::vector<T> sums = expected<T>(reduce);
      for (int way = 0; way < kWays; ++way) {
        for (std::size_t i = 0; i < data.size(); ++i) data[i] = own[i % kPeriod];
        const std::int64_t before = comm.bytes_between();
        comm.all_reduce(View(data.data(), std::ssize(data), dtype), reduce);
        if (comm.local_rank() != 0 && comm.bytes_between() > before) ++in_lanes;
        EXPECT_EQ(difference(data, sums), "") << name_of(dtype) << ", " << name_of(reduce.kind);
      }
    }
    if (comm.local_rank() != 0) {
      EXPECT_EQ(in_lanes, are_even() ? 3 : 0) << "one of each two calls";
    }
  }
};

TEST_F(LanesOfHalves, HaveTheSameBitsByBothWays) {
  if (hosts() == 1) GTEST_SKIP() << "needs two hosts";
  on_ranks(check_sums<Half>);
  on_ranks(check_sums<BFloat16>);
}

/** So the test above can tell how often sums were rounded, and of three hosts in which order. */
TEST_F(LanesOfHalves, AreDataOfWhichEachOrderHasBitsOfItsOwn) {
  if (hosts() == 1) GTEST_SKIP() << "needs two hosts";
  std::vector<std::vector<Half>> all;
  for (const auto& contributions : by_host<Half>()) {
    all.insert(all.end(), contributions.begin(), contributions.end());
  }
  EXPECT_NE(difference(sum_of(all, 1, 1), expected<Half>({})), "");
  if (hosts() == 2) return;
  EXPECT_NE(difference(expected<Half>({}, true), expected<Half>({})), "");
  EXPECT_NE(difference(expected<BFloat16>({}, true), expected<BFloat16>({})), "");
}

}  // namespace
}  // namespace tutti::test
