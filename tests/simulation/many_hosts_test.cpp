// More hosts than exchange directly: results and their order, long messages, what goes on around.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/broadcast.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/reduce.hpp"
#include "comm/simulation/wire.hpp"
#include "device/cpu/reduction.hpp"
#include "simulation/exact_case.hpp"
#include "support/data.hpp"

namespace tutti::test {
namespace {

using simulation::Cluster;
using simulation::NetworkModel;
using simulation::Process;
using simulation::SimulatedWire;
using Bytes = std::vector<std::byte>;
using Body = std::function<void(const HostGroup&)>;
using WireBody = std::function<void(const HostGroup&, const Wire&)>;

/** Runs `body` on simulated hosts, all of which have to come to its end. */
void on_wires(int hosts, const WireBody& body,
              NetworkModel::Duration latency = std::chrono::microseconds(10),
              NetworkModel::Duration late = {}) {  // the first host
  constexpr std::chrono::milliseconds kTimeout{5000};
  NetworkModel model;
  model.latency = latency;
  model.overhead = std::chrono::nanoseconds(500);
  model.jitter = std::chrono::microseconds(20);
  Cluster cluster(hosts, 1, model, 1);
  std::vector<int> members(static_cast<std::size_t>(hosts));
  std::iota(members.begin(), members.end(), 0);
  int ended = 0;
  cluster.start([&](Process& process) {
    SimulatedWire wire(process, 1, kTimeout);
    try {
      wire.connect();
      const HostGroup group(wire, members);
      if (late.count() > 0 && process.rank() == 0) process.compute(late);
      body(group, wire);
      ++ended;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "host " << process.rank() << " of " << hosts << ": " << error.what();
    }
    wire.leave();
  });
  cluster.scheduler().run(cluster.scheduler().now() + std::chrono::hours(1));
  ASSERT_EQ(ended, hosts);
}

void on_hosts(int hosts, const Body& body) {
  on_wires(hosts, [&](const HostGroup& group, const Wire&) { body(group); });
}

void expect_all_reduced(int hosts, const ExactCase& what) {
  SCOPED_TRACE(std::to_string(hosts) + " hosts, " + what.text());
  const std::vector<double> results = what.results(hosts);
  on_hosts(hosts, [&](const HostGroup& group) {
    Bytes data = what.of(group.position());
    AllReduce(group).run(data.data(), what.count, what.dtype, combine_of(what.reduce, hosts));
    ASSERT_TRUE(what.holds_in(data, results)) << "host " << group.position();
  });
}

TEST(ManyHosts, AllReduceEveryTypeAndReduction) {
  for (const DType dtype : kDTypes) {
    for (const Reduce& reduce : reductions(dtype)) {
      for (const int hosts : {33, 37}) expect_all_reduced(hosts, {dtype, reduce, 3001});
    }
  }
}

TEST(ManyHosts, AllReduceEverySize) {
  for (const int hosts : {33, 37, 64, 100, 257}) {
    for (const std::int64_t count : {1, 127, 129, 1000, 4097, 20'001}) {
      expect_all_reduced(hosts, {DType::bf16, Reduce::sum, count});
    }
    expect_all_reduced(hosts, {DType::f32, Reduce::average, 10'007});
    expect_all_reduced(hosts, {DType::i64, Reduce::min, 1003});
  }
}

/** Several times as many windows as are under way. */
TEST(ManyHosts, AllReduceLongMessages) {
  constexpr std::int64_t kBytes = std::int64_t{10} << 20U;
  expect_all_reduced(33, {DType::f32, Reduce::sum, kBytes / 4 + 5});   // groups of 16 and 17
  expect_all_reduced(37, {DType::bf16, Reduce::sum, kBytes / 2 + 5});  // of 12, 12 and 13
}

/** Few hosts: a window is several messages. Of what is long two send nothing before they agree;
 * three and more send the first along with what they compare. */
TEST(FewHosts, AllReduceInLongWindows) {
  for (const int hosts : {2, 3, 5}) {
    const std::int64_t one_each = hosts * Wire::kPiece / 4;
    for (const std::int64_t count : {one_each, one_each + 1, 4 * one_each + 1, 40 * one_each + 1}) {
      for (const bool alone : {false, true}) {
        const ExactCase what{DType::f32, Reduce::sum, count};
        SCOPED_TRACE(std::to_string(hosts) + (alone ? " hosts, " : " large hosts, ") + what.text());
        const std::vector<double> results = what.results(hosts);
        int agreed = 0;
        int have_sent = 0;
        const auto reduce = [&](const HostGroup& group, const Wire& wire) {
          Bytes data = what.of(group.position());
          const std::int64_t before = wire.bytes_sent();
          GroupAgreement agreement(group);
          const auto agree = [&](Ahead* ahead) {
            ++agreed;
            if (wire.bytes_sent() > before) ++have_sent;
            EXPECT_TRUE(agreement.agree(1, ahead));
          };
          AllReduce(group, alone)
              .run(data.data(), count, what.dtype, combine_of(what.reduce, hosts),
                   {.agree = agree});
          ASSERT_TRUE(what.holds_in(data, results)) << "host " << group.position();
        };
        for (const int late : {0, 1}) {
          agreed = have_sent = 0;
          on_wires(hosts, reduce, std::chrono::microseconds(10), std::chrono::milliseconds(late));
          EXPECT_EQ(agreed, hosts);
          const bool is_long = count > (alone ? one_each : 2 * one_each);
          EXPECT_EQ(have_sent, hosts > 2 || is_long ? 0 : hosts);
        }
      }
    }
  }
}

/** Comparing takes no step of its own: contributions come, and then results. */
TEST(FewHosts, AllReduceInTwoSteps) {
  constexpr int kHosts = 4;
  constexpr std::int64_t kCount = 16 << 10;
  const ExactCase what{DType::f32, Reduce::sum, kCount};
  Wire::Clock::time_point begun;
  Wire::Clock::time_point ended;
  const auto reduce = [&](const HostGroup& group, const Wire& wire) {
    Bytes data = what.of(group.position());
    begun = std::max(begun, wire.now());
    GroupAgreement agreement(group);
    const auto agree = [&](Ahead* ahead) { EXPECT_TRUE(agreement.agree(1, ahead)); };
    AllReduce(group, true)
        .run(data.data(), kCount, what.dtype, combine_of(what.reduce, kHosts), {.agree = agree});
    ended = std::max(ended, wire.now());
  };
  on_wires(kHosts, reduce, std::chrono::milliseconds(1));
  EXPECT_LT(ended - begun, std::chrono::microseconds(2500));
}

TEST(ManyHosts, ReduceToAnyRoot) {
  for (const int hosts : {33, 37, 64}) {
    for (const int root : {0, hosts / 2, hosts - 1}) {
      for (const std::int64_t count : {100, 3001, root == 0 ? 1'500'001 : 64}) {
        const ExactCase what{DType::f16, Reduce::sum, count};
        SCOPED_TRACE(std::to_string(hosts) + " hosts, root " + std::to_string(root) + ", " +
                     what.text());
        const std::vector<double> results = what.results(hosts);
        on_hosts(hosts, [&](const HostGroup& group) {
          Bytes data = what.of(group.position());
          reduce_to(group, root, data.data(), what.count, what.dtype,
                    combine_of(what.reduce, hosts));
          if (group.position() != root) return;
          ASSERT_TRUE(what.holds_in(data, results));
        });
      }
    }
  }
}

TEST(ManyHosts, BroadcastFromAnyRoot) {
  const auto byte = [](std::int64_t i) { return static_cast<std::byte>(scrambled(5, i, 256)); };
  for (const int hosts : {33, 37, 64, 100}) {
    for (const int root : {0, hosts / 2, hosts - 1}) {
      for (const std::int64_t bytes : {1, 3001, root == 0 ? 64 : 2'000'001}) {
        SCOPED_TRACE(std::to_string(hosts) + " hosts, root " + std::to_string(root) + ", " +
                     std::to_string(bytes) + " bytes");
        Bytes expected(static_cast<std::size_t>(bytes));
        for (std::int64_t i = 0; i < bytes; ++i) expected[static_cast<std::size_t>(i)] = byte(i);
        on_hosts(hosts, [&](const HostGroup& group) {
          Bytes data(expected.size());
          if (group.position() == root) data = expected;
          broadcast_from(group, root, data.data(), bytes);
          ASSERT_TRUE(data == expected) << "host " << group.position();
        });
      }
    }
  }
}

// --- The order ----------------------------------------------------------------------------------

/** Of both signs and many magnitudes: every order of additions has a sum of its own. */
float rough(int host, std::int64_t i) {
  const int bits = scrambled(host, i, 1 << 20);
  const float mantissa = 1.0F + static_cast<float>(bits % 2048) / 2048;
  return std::ldexp((bits & 2048) != 0 ? -mantissa : mantissa, (bits >> 12) % 31 - 15);
}

/** Adds up the hosts from one begin to the next, and then these sums. */
float sum_of_groups(std::span<const int> begins, std::int64_t i) {
  float total = 0;
  for (std::size_t group = 0; group + 1 < begins.size(); ++group) {
    float sum = rough(begins[group], i);
    for (int host = begins[group] + 1; host < begins[group + 1]; ++host) sum += rough(host, i);
    total = group == 0 ? sum : total + sum;
  }
  return total;
}

std::vector<float> rough_values(int host, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = rough(host, i);
  return values;
}

constexpr std::int64_t kRough = 2003;  // elements, of which some windows are shorter than others

void expect_order(std::span<const int> begins, bool in_order) {
  const int hosts = begins.back();
  std::vector<float> expected;
  for (std::int64_t i = 0; i < kRough; ++i) expected.push_back(sum_of_groups(begins, i));
  on_hosts(hosts, [&](const HostGroup& group) {
    std::vector<float> data = rough_values(group.position(), kRough);
    const cpu::Combine combine = combine_of(Reduce::sum, hosts);
    if (in_order) {
      AllReduce(group).run_in_order(data.data(), kRough, DType::f32, combine);
    } else {
      AllReduce(group).run(data.data(), kRough, DType::f32, combine);
    }
    ASSERT_EQ(data, expected) << "host " << group.position() << " of " << hosts;
  });
}

TEST(ManyHosts, AddInsideGroupsAndThenGroupByGroup) {
  expect_order(std::array{0, 16, 33}, false);
  expect_order(std::array{0, 12, 24, 37}, false);
  expect_order(std::array{0, 20, 40, 60, 80, 100}, false);
}

TEST(ManyHosts, AddInTheOrderOfTheHostsWhereThatIsAskedFor) {
  expect_order(std::array{0, 33}, true);
  expect_order(std::array{0, 100}, true);
}

TEST(ManyHosts, AreAddedDirectlyUpTo32) { expect_order(std::array{0, 32}, false); }

TEST(ManyHosts, Round16BitSumsOnce) {
  constexpr int kHosts = 64;
  constexpr std::array kBegins{0, 16, 32, 48, 64};
  std::vector<BFloat16> expected;
  for (std::int64_t i = 0; i < kRough; ++i) {
    float total = 0;
    for (std::size_t group = 0; group + 1 < kBegins.size(); ++group) {
      float sum = 0;
      for (int host = kBegins[group]; host < kBegins[group + 1]; ++host) {
        sum += to_float(to_bfloat16(rough(host, i)));
      }
      total += sum;
    }
    expected.push_back(to_bfloat16(total));
  }
  on_hosts(kHosts, [&](const HostGroup& group) {
    std::vector<BFloat16> data;
    for (std::int64_t i = 0; i < kRough; ++i) {
      data.push_back(to_bfloat16(rough(group.position(), i)));
    }
    AllReduce(group).run(data.data(), kRough, DType::bf16, combine_of(Reduce::sum, kHosts));
    for (std::size_t i = 0; i < data.size(); ++i) {
      ASSERT_EQ(data[i].bits, expected[i].bits) << "element " << i;
    }
  });
}

/** Between hosts of eight ranks an eighth of the sums of these travels, see stages_of(). */
TEST(ManyHosts, AverageLarge16BitNumbersOfWhichNoSumWouldFit) {
  constexpr int kHosts = 64;
  constexpr std::int64_t kRanks = 8;
  constexpr float kLarge = 60000;
  on_hosts(kHosts, [&](const HostGroup& group) {
    std::vector<Half> data(kRough, to_half(kLarge));
    AllReduce(group).run(data.data(), kRough, DType::f16,
                         {ReduceKind::sum, kRanks, kHosts * kRanks});
    for (const Half value : data) ASSERT_EQ(to_float(value), kLarge);
  });
}

// --- What goes on around ------------------------------------------------------------------------

void expect_segments_in_turn(int hosts) {
  constexpr std::int64_t kCount = (std::int64_t{18} << 20U) / 4 + 7;  // of more segments than fit
  const ExactCase what{DType::f32, Reduce::sum, kCount};
  const std::vector<double> results = what.results(hosts);
  on_hosts(hosts, [&](const HostGroup& group) {
    const AllReduce all_reduce(group);
    if (group.position() > 1) {
      Bytes data = what.of(group.position());
      return all_reduce.run(data.data(), kCount, what.dtype, combine_of(what.reduce, hosts));
    }
    using Calls = std::vector<std::pair<std::int64_t, std::int64_t>>;
    const Bytes own = what.of(group.position());
    Bytes data(own.size());
    const auto width = static_cast<std::size_t>(size_of(what.dtype));
    Calls calls;  // those after a segment are negative
    const Around around{
        [&](std::int64_t begin, std::int64_t count) {
          calls.emplace_back(begin, count);
          std::copy_n(own.data() + static_cast<std::size_t>(begin) * width,
                      static_cast<std::size_t>(count) * width,
                      data.data() + static_cast<std::size_t>(begin) * width);
        },
        [&](std::int64_t begin, std::int64_t count) {
          calls.emplace_back(-begin, -count);
          const ConstView part(data.data() + static_cast<std::size_t>(begin) * width, count,
                               what.dtype);
          ASSERT_TRUE(holds(
              part, [&](std::int64_t i) { return results[static_cast<std::size_t>(begin + i)]; }));
        }};
    all_reduce.run(data.data(), kCount, what.dtype, combine_of(what.reduce, hosts), around);
    Calls beside;
    all_reduce.accompany(
        kCount, what.dtype,
        {[&](std::int64_t begin, std::int64_t count) { beside.emplace_back(begin, count); },
         [&](std::int64_t begin, std::int64_t count) { beside.emplace_back(-begin, -count); }});
    EXPECT_EQ(calls, beside);
    EXPECT_EQ(calls.front().second, all_reduce.first_segment(kCount, what.dtype));
    std::int64_t made_ready = 0;
    for (const auto& [begin, count] : calls) made_ready += std::max<std::int64_t>(count, 0);
    EXPECT_EQ(made_ready, kCount);
    // The first results are there before the last segment is made ready.
    const auto first_result =
        std::find_if(calls.begin(), calls.end(), [](const auto& call) { return call.second < 0; });
    EXPECT_GT(
        std::count_if(first_result, calls.end(), [](const auto& call) { return call.second > 0; }),
        0);
  });
}

TEST(ManyHosts, MakeSegmentsReadyWhileOthersTravel) {
  for (const int hosts : {2, 4, 37}) expect_segments_in_turn(hosts);
}

}  // namespace
}  // namespace tutti::test
