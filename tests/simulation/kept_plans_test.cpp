// Trials that once ended wrongly, as they were drawn then, and some that are like them: what a seed
// draws changes with what there is to draw.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "simulation/trial.hpp"

namespace tutti::test::simulated {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

struct Kept {
  const char* what;  ///< is special about it
  std::uint64_t seed;
  Plan plan;
};

std::ostream& operator<<(std::ostream& out, const Kept& kept) {
  return out << kept.what << ", " << kept.seed;
}

/** Two hosts of two ranks, of which rank 1 is late when its host is lost; the others of that host
 * have answered. */
Plan late_on_a_lost_host(FaultKind kind, std::int64_t room) {
  using enum StepKind;
  using enum DType;
  return {.hosts = 2,
          .ranks = 2,
          .model = {.latency = microseconds(1),
                    .jitter = microseconds(128),
                    .overhead = microseconds(0),
                    .bytes_per_second = 2e7},
          .timeout = milliseconds(1108),
          .steps = {{all_gather, u8, Reduce::sum, 0, 0, 0, 1, microseconds(945957)},
                    {agreed_all_reduce, bf16, Reduce::sum, 4, 2, kNobody, 1, microseconds(212)}},
          .fault = {.kind = kind, .rank = 1, .at = microseconds(435781), .factor = 1, .step = 1},
          .room = room};
}

/** Who finds the mistake that `rank` makes in `step`. */
Fault who_finds_is_stopped(int rank, int step) {
  return {.kind = FaultKind::mistaken, .rank = rank, .step = step, .stops_finder = true};
}

std::vector<Kept> kept_plans() {
  using enum StepKind;
  using enum DType;
  const Reduce sum = Reduce::sum;
  const Reduce max = Reduce::max;
  const microseconds none{0};
  return {
      {"A cable holds back messages of one who has left",
       5363,
       {.hosts = 2,
        .ranks = 3,
        .model = {.latency = microseconds(23),
                  .jitter = microseconds(182),
                  .overhead = nanoseconds(3530),
                  .bytes_per_second = 2.2e8},
        .timeout = milliseconds(2810),
        .steps = {{reduce_scatter_v, i64, max, 3, 2, kNobody, 2, microseconds(3327)},
                  {broadcast, f16, sum, 4, 5, kNobody, 0, none}},
        .fault = {.kind = FaultKind::unplugged,
                  .rank = 2,
                  .at = microseconds(144),
                  .factor = 1,
                  .step = 0}}},
      {"A cable holds back messages of one who has left",
       16860,
       {.hosts = 4,
        .ranks = 1,
        .model = {.latency = microseconds(15),
                  .jitter = microseconds(1013),
                  .overhead = nanoseconds(3),
                  .bytes_per_second = 1.17e9},
        .timeout = milliseconds(2192),
        .steps = {{broadcast, f32, sum, 1, 3, kNobody, 2, none},
                  {all_to_all_v, f16, sum, 2, 1, kNobody, 3, none},
                  {all_reduce, f64, sum, 434, 1, kNobody, 3, microseconds(6)},
                  {broadcast, f64, max, 30, 1, kNobody, 1, microseconds(3158)},
                  {all_to_all_v, u8, max, 0, 3, kNobody, 3, none},
                  {reduce_scatter_v, i64, max, 51, 0, kNobody, 2, none}},
        .fault = {.kind = FaultKind::unplugged,
                  .rank = 1,
                  .at = microseconds(6019),
                  .factor = 3,
                  .step = 0}}},
      {"A cable holds back messages of one who has left",
       115302,
       {.hosts = 8,
        .ranks = 1,
        .model = {.latency = microseconds(8),
                  .jitter = microseconds(237),
                  .overhead = nanoseconds(6),
                  .bytes_per_second = 1.06e9},
        .timeout = milliseconds(1884),
        .steps = {{reduce_scatter_v, i64, sum, 135, 4, kNobody, 0, none}},
        .fault = {.kind = FaultKind::unplugged,
                  .rank = 0,
                  .at = microseconds(155),
                  .factor = 3,
                  .step = 0}}},
      {"A cut after leaders have left",
       56930,
       {.hosts = 7,
        .ranks = 2,
        .model = {.latency = microseconds(2),
                  .jitter = microseconds(7),
                  .overhead = nanoseconds(24),
                  .bytes_per_second = 1e8},
        .timeout = milliseconds(1741),
        .steps = {{reduce, i64, sum, 595, 13, kNobody, 2, none},
                  {agree, bf16, sum, 211, 13, kNobody, 8, microseconds(19)},
                  {reduce_scatter_v, u8, sum, 1, 9, kNobody, 6, none}},
        .fault = {.kind = FaultKind::cut_off,
                  .rank = 2,
                  .at = microseconds(184),
                  .factor = 1,
                  .step = 2}}},
      {"A cut after leaders have left",
       106751,
       {.hosts = 8,
        .ranks = 3,
        .model = {.latency = microseconds(1),
                  .jitter = microseconds(4),
                  .overhead = nanoseconds(45),
                  .bytes_per_second = 3.14e9},
        .timeout = milliseconds(1463),
        .steps = {{all_gather_v, i64, max, 0, 10, kNobody, 12, none},
                  {reduce_scatter_v, f32, max, 7, 21, kNobody, 18, none},
                  {all_gather_v, bf16, max, 1, 1, kNobody, 6, microseconds(548922)},
                  {reduce_scatter_v, f16, sum, 2, 1, kNobody, 11, none},
                  {reduce, f16, sum, 1, 23, kNobody, 7, none}},
        .fault = {.kind = FaultKind::cut_off,
                  .rank = 9,
                  .at = microseconds(9126),
                  .factor = 2,
                  .step = 1}}},
      {"A crash after leaders have left",
       115320,
       {.hosts = 6,
        .ranks = 3,
        .model = {.latency = microseconds(2),
                  .jitter = microseconds(3),
                  .overhead = nanoseconds(1),
                  .bytes_per_second = 1.1e8},
        .timeout = milliseconds(1378),
        .steps = {{all_to_all_v, f32, max, 93, 2, kNobody, 15, none},
                  {broadcast, f32, sum, 109, 14, kNobody, 12, microseconds(64273)},
                  {reduce_scatter_v, f16, sum, 214, 2, kNobody, 9, none},
                  {reduce_scatter_v, f32, max, 1, 4, kNobody, 0, microseconds(507)},
                  {reduce, u8, max, 2, 17, kNobody, 14, none}},
        .fault = {.kind = FaultKind::crashed,
                  .rank = 0,
                  .at = microseconds(357),
                  .factor = 19,
                  .step = 2}}},
      {"A cut after leaders have left",
       421786,
       {.hosts = 6,
        .ranks = 3,
        .model = {.latency = microseconds(181),
                  .jitter = none,
                  .overhead = nanoseconds(7),
                  .bytes_per_second = 1.2e8},
        .timeout = milliseconds(2842),
        .steps = {{reduce, f64, sum, 16, 1, kNobody, 6, none},
                  {reduce, u8, sum, 1, 17, kNobody, 17, none},
                  {all_to_all_v, f64, sum, 12, 4, kNobody, 1, none},
                  {reduce_scatter_v, i64, max, 31, 11, kNobody, 1, none}},
        .fault = {.kind = FaultKind::cut_off,
                  .rank = 4,
                  .at = microseconds(608),
                  .factor = 3,
                  .step = 0}}},
      {"A cut after leaders have left",
       639067,
       {.hosts = 5,
        .ranks = 3,
        .model = {.latency = microseconds(3),
                  .jitter = none,
                  .overhead = nanoseconds(1),
                  .bytes_per_second = 5e7},
        .timeout = milliseconds(2186),
        .steps = {{reduce_scatter_v, i64, sum, 0, 14, kNobody, 8, none},
                  {reduce_scatter_v, f16, sum, 18, 4, kNobody, 9, none}},
        .fault = {.kind = FaultKind::cut_off,
                  .rank = 10,
                  .at = microseconds(12),
                  .factor = 7,
                  .step = 1}}},
      {"A link so slow that no answer comes through",
       410858,
       {.hosts = 46,
        .ranks = 1,
        .model = {.latency = microseconds(3),
                  .jitter = none,
                  .overhead = nanoseconds(249),
                  .bytes_per_second = 3e7},
        .timeout = milliseconds(1160),
        .steps = {{all_reduce, f64, sum, 2, 40, kNobody, 2, none},
                  {all_gather, f32, max, 55032, 0, kNobody, 38, microseconds(26)},
                  {reduce, f64, max, 1, 7, kNobody, 9, microseconds(4)}},
        .fault = {.kind = FaultKind::slowed,
                  .rank = 24,
                  .at = microseconds(214),
                  .factor = 28,
                  .step = 0}}},
      {"A link so slow that no answer comes through",
       649317,
       {.hosts = 45,
        .ranks = 1,
        .model = {.latency = microseconds(11),
                  .jitter = microseconds(1),
                  .overhead = nanoseconds(0),
                  .bytes_per_second = 1e7},
        .timeout = milliseconds(2731),
        .steps = {{all_reduce, u8, sum, 2, 32, kNobody, 23, none},
                  {all_to_all_v, f64, sum, 14, 1, kNobody, 6, microseconds(5497)},
                  {all_gather_v, u8, sum, 105765, 8, kNobody, 34, none}},
        .fault = {.kind = FaultKind::slowed,
                  .rank = 15,
                  .at = microseconds(25),
                  .factor = 14,
                  .step = 1}}},
      {"Data of two roots of a call",
       2509077,
       {.hosts = 5,
        .ranks = 1,
        .model = {.latency = microseconds(16),
                  .jitter = none,
                  .overhead = nanoseconds(21),
                  .bytes_per_second = 2.6e8},
        .timeout = milliseconds(2332),
        .steps = {{one_way_broadcast, i64, max, 42793, 4, 0, 1, none}},
        .fault = {.kind = FaultKind::mistaken, .rank = 2, .at = none, .factor = 1, .step = 0}}},
      {"Data of two roots of a call",
       2518576,
       {.hosts = 8,
        .ranks = 1,
        .model = {.latency = microseconds(52),
                  .jitter = none,
                  .overhead = nanoseconds(405),
                  .bytes_per_second = 2e7},
        .timeout = milliseconds(2170),
        .steps = {{reduce_scatter_v, u8, max, 1, 6, kNobody, 3, microseconds(1)},
                  {one_way_broadcast, f16, sum, 20808, 2, kNobody, 2, microseconds(2)}},
        .fault = {.kind = FaultKind::mistaken, .rank = 3, .at = none, .factor = 1, .step = 1}}},
      {"One of equal calls is left out, of which nobody can know",
       4004577,
       {.hosts = 2,
        .ranks = 1,
        .model = {.latency = microseconds(3),
                  .jitter = none,
                  .overhead = nanoseconds(5),
                  .bytes_per_second = 2e7},
        .timeout = milliseconds(1054),
        .steps = {{one_way_broadcast, f64, max, 4, 0, kNobody, 1, microseconds(57037)},
                  {one_way_broadcast, u8, max, 4, 0, 1, 1, none}},
        .fault = {.kind = FaultKind::mistaken, .rank = 1, .at = none, .factor = 1, .step = 0}}},
      {"Data of two roots of a call, of which one's are too long for the other's",
       6039449,
       {.hosts = 4,
        .ranks = 1,
        .model = {.latency = microseconds(44),
                  .jitter = microseconds(309),
                  .overhead = nanoseconds(0),
                  .bytes_per_second = 2.12e9},
        .timeout = milliseconds(1100),
        .steps = {{all_to_all_v, bf16, sum, 11, 0, kNobody, 3, none},
                  {all_gather, u8, max, 0, 1, 0, 0, microseconds(13879)},
                  {one_way_broadcast, f32, max, 90318, 2, kNobody, 3, none},
                  {all_to_all_v, f16, sum, 124, 0, kNobody, 3, none}},
        .fault = {.kind = FaultKind::mistaken, .rank = 3, .at = none, .factor = 1, .step = 2}}},
      {"A cut while a rank of that host is late, and another one has answered", 9501639,
       late_on_a_lost_host(FaultKind::cut_off, 148)},
      {"A host is stopped while one of its ranks is late, and another one has answered", 9501640,
       late_on_a_lost_host(FaultKind::host_stopped, 148)},
      {"A crash while a rank of that host is late, and another one has answered", 9501641,
       late_on_a_lost_host(FaultKind::crashed, 0)},
      {"Two ranks wait for each other since a third one, which has answered both, computes",
       3086286,
       {.hosts = 4,
        .ranks = 1,
        .model = {.latency = microseconds(19),
                  .jitter = microseconds(7),
                  .overhead = none,
                  .bytes_per_second = 2.12e9},
        .timeout = milliseconds(1062),
        .steps = {{broadcast, i64, sum, 15, 1, 2, 0, microseconds(471697)},
                  {broadcast, bf16, sum, 11078, 3, kNobody, 1, none},
                  {all_gather, f16, sum, 2, 3, kNobody, 0, none}},
        .fault =
            {.kind = FaultKind::absent, .rank = 0, .at = microseconds(3), .factor = 8, .step = 1},
        .room = 4353}},
      {"Who finds a mismatch is stopped, and the leader of one who waits has completed its calls",
       31009739,
       {.hosts = 3,
        .ranks = 2,
        .model = {.latency = microseconds(152),
                  .jitter = none,
                  .overhead = nanoseconds(1),
                  .bytes_per_second = 3.7e8},
        .timeout = milliseconds(1418),
        .steps = {{all_gather_v, i64, sum, 3, 3, kNobody, 2, none},
                  {all_to_all_v, f16, sum, 13, 5, kNobody, 1, none},
                  {agree, bf16, max, 351, 5, 1, 2, none}},
        .fault = who_finds_is_stopped(2, 2)}},
      {"Who finds a mismatch is stopped, and one that might tell in its place completes its calls",
       10723,
       {.hosts = 6,
        .ranks = 3,
        .model = {.latency = microseconds(81),
                  .jitter = none,
                  .overhead = nanoseconds(2),
                  .bytes_per_second = 1.5e8},
        .timeout = milliseconds(1578),
        .steps = {{one_way_broadcast, i64, sum, 52255, 1, kNobody, 5, none}},
        .fault = who_finds_is_stopped(13, 0),
        .room = 12188}},
      {"Who finds a mismatch is stopped in the middle of an agreement that another one has ended",
       56597,
       {.hosts = 2,
        .ranks = 2,
        .model = {.latency = microseconds(14),
                  .jitter = none,
                  .overhead = nanoseconds(35),
                  .bytes_per_second = 1.16e9},
        .timeout = milliseconds(1186),
        .steps = {{one_way_broadcast, f16, max, 263764, 2, kNobody, 2, none},
                  {all_reduce, bf16, max, 7, 0, kNobody, 3, none},
                  {one_way_broadcast, i64, max, 71, 1, kNobody, 3, none}},
        .fault = who_finds_is_stopped(1, 0),
        .room = 5265}},
  };
}

class KeptPlan : public testing::TestWithParam<Kept> {};

void expect_right_end(const Plan& plan, std::uint64_t seed) {
  const Outcome outcome = run_trial(plan, seed);
  std::string complaints;
  for (const std::string& one : outcome.complaints) complaints += "\n" + one;
  EXPECT_EQ(complaints, "") << describe(plan) << outcome.story;
}

TEST_P(KeptPlan, EndsAsItMust) { expect_right_end(GetParam().plan, GetParam().seed); }

TEST_P(KeptPlan, EndsAsItMustOverConnectionsWhateverRoomTheyHave) {
  for (const std::int64_t room : {1, 1000, 60'000, 256 << 10}) {
    Plan plan = GetParam().plan;
    plan.room = room;
    expect_right_end(plan, GetParam().seed);
  }
}

INSTANTIATE_TEST_SUITE_P(Simulation, KeptPlan, testing::ValuesIn(kept_plans()),
                         [](const auto& kept) { return std::to_string(kept.param.seed); });

}  // namespace
}  // namespace tutti::test::simulated
