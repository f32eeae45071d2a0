// Draws what a trial does.
#include <algorithm>
#include <array>
#include <random>
#include <string_view>

#include "comm/hosts/transport.hpp"
#include "comm/wire.hpp"
#include "simulation/trial.hpp"

namespace tutti::test::simulated {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

class Draws {
 public:
  explicit Draws(std::uint64_t seed) : engine_(seed) {}
  /** From 0 to below - 1. */
  std::int64_t below(std::int64_t below) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(below));
  }
  int one_of(int count) { return static_cast<int>(below(count)); }
  bool once_in(int times) { return below(times) == 0; }
  /** From 0 to 2^bits, small ones as often as large ones. */
  std::int64_t size(int bits) { return below((std::int64_t{1} << below(bits + 1)) + 1); }

 private:
  std::mt19937_64 engine_;
};

constexpr std::array<DType, 6> kTypes{DType::f32,  DType::f64, DType::f16,
                                      DType::bf16, DType::i64, DType::u8};
/** More ranks than these exchange long messages of these kinds in groups. */
constexpr int kMostDirect = 32;
constexpr std::array<StepKind, 3> kGrouped{StepKind::all_reduce, StepKind::reduce,
                                           StepKind::broadcast};
constexpr std::array<std::string_view, kStepKinds> kStepNames{"agree",
                                                              "all_gather",
                                                              "all_gather_v",
                                                              "all_to_all_v",
                                                              "broadcast",
                                                              "all_reduce",
                                                              "reduce_scatter_v",
                                                              "reduce",
                                                              "agreed_broadcast",
                                                              "agreed_all_reduce",
                                                              "one_way_broadcast",
                                                              "lanes",
                                                              "one_way_reduce"};
constexpr std::array<std::string_view, kFaultKinds> kFaultNames{
    "none",    "killed",       "host killed",      "crashed",   "cut off",
    "stopped", "host stopped", "interrupted",      "unplugged", "slowed",
    "absent",  "left",         "interrupted call", "mistaken"};

Step draw_step(Draws& draws, int ranks) {
  Step step{};
  step.kind = static_cast<StepKind>(draws.one_of(kDrawnSteps));
  step.dtype = kTypes[static_cast<std::size_t>(draws.one_of(std::ssize(kTypes)))];
  step.reduce = draws.once_in(2) ? Reduce::sum : Reduce::max;
  // Few large ones: thousands of trials are to take seconds.
  step.count = draws.size(draws.once_in(20) ? 17 : ranks > 16 ? 8 : 11);
  step.root = draws.one_of(ranks);
  step.odd = draws.once_in(4) ? draws.one_of(ranks) : kNobody;
  step.late = draws.one_of(ranks);
  step.late_by = microseconds(draws.once_in(3) ? draws.size(20) : 0);
  if (ranks > kMostDirect && draws.once_in(2)) {  // what they do in groups
    step.kind = kGrouped[static_cast<std::size_t>(draws.one_of(std::ssize(kGrouped)))];
    step.count = draws.size(19);
  }
  return step;
}

/** Between two to four hosts: messages over their connections, each of which takes longer than a
 * deadline, and always moves. What is under way is little: who is asked answers in time. */
void draw_trickle(Draws& draws, Plan& plan) {
  constexpr std::array kinds{StepKind::broadcast, StepKind::all_reduce, StepKind::agreed_broadcast,
                             StepKind::agreed_all_reduce};
  constexpr std::int64_t kShortSteps = 1024;
  for (Step& step : plan.steps) step.count %= kShortSteps;
  Step& step = plan.steps[static_cast<std::size_t>(draws.below(std::ssize(plan.steps)))];
  step.kind = kinds[static_cast<std::size_t>(draws.one_of(std::ssize(kinds)))];
  step.dtype = DType::f64;
  step.count = plan.hosts * Wire::kLongPiece / size_of(step.dtype) + draws.below(1 << 10);
  constexpr int kWindows = 2;  // under way to each
  const int deadlines = 1 + draws.one_of(2);
  const double deadline = std::chrono::duration<double>(plan.timeout).count();
  plan.model.bytes_per_second = static_cast<double>(Wire::kLongPiece) / deadline / deadlines;
  plan.fault.factor = std::min(plan.fault.factor, 2.0);  // minutes are no hang
  plan.moves_on = plan.timeout * deadlines * kWindows * (plan.hosts - 2);
  const double under_way = plan.model.bytes_per_second / 10 / plan.hosts;
  plan.room = std::min(plan.room, static_cast<std::int64_t>(under_way));
}

/** Some steps are long sums in lanes; in half of the plans with a fault the first is, and the fault
 * strikes about when that is under way. */
void draw_lanes(Draws& draws, Plan& plan) {
  const auto make = [&](Step& step) {
    step.kind = StepKind::lanes;
    if (step.dtype == DType::u8) step.dtype = DType::f64;  // few elements to check
    // As long as windows of lanes need; those of more than two hosts are shorter than in
    // transports.
    const std::int64_t fewest = plan.hosts == 2 ? HierarchicalTransport::fewest_in_lanes(
                                                      plan.hosts, plan.hosts * plan.ranks)
                                                : plan.hosts * Wire::kPiece + 1;
    step.count = (fewest + draws.size(plan.hosts == 2 ? 21 : 20)) / size_of(step.dtype) + 1;
  };
  for (Step& step : plan.steps) {
    if (draws.once_in(6)) make(step);
  }
  if (plan.fault.kind == FaultKind::none || draws.once_in(2)) return;
  Step& first = plan.steps.front();
  make(first);
  first.odd = kNobody;
  first.late_by = microseconds(0);
  plan.fault.step = static_cast<int>(draws.below(std::ssize(plan.steps)));
  const double seconds =
      2 * static_cast<double>(first.count * size_of(first.dtype)) / plan.model.bytes_per_second;
  plan.fault.at = microseconds(draws.below(1 + static_cast<std::int64_t>(seconds * 1e6)));
}

/** How long the bytes of a step are under way on a host's link at most, if all ranks of the host
 * use it. Blocks are bytes, but for those that are added up. */
microseconds time_on_link(const Step& step, const Plan& plan) {
  const std::int64_t elements = step.count * size_of(step.dtype);
  const std::int64_t ranks = std::int64_t{plan.hosts} * plan.ranks;
  const auto bytes_of_rank = [&] {
    switch (step.kind) {
      case StepKind::agree:
        return std::int64_t{0};
      case StepKind::all_gather:
      case StepKind::all_gather_v:
      case StepKind::all_to_all_v:
        return ranks * step.count;
      case StepKind::reduce_scatter_v:
        return ranks * elements;
      default:
        return 2 * elements;
    }
  };
  const auto bytes = static_cast<double>(plan.ranks * bytes_of_rank());
  return microseconds(static_cast<std::int64_t>(1e6 * bytes / plan.model.bytes_per_second));
}

/** Of what the fault may strike: the step at which its rank is, and what others are at meanwhile.
 */
microseconds time_on_link_when_struck(const Plan& plan) {
  microseconds longest{0};
  for (const int step : {plan.fault.step - 1, plan.fault.step, plan.fault.step + 1}) {
    if (step < 0 || step >= std::ssize(plan.steps)) continue;
    longest = std::max(longest, time_on_link(plan.steps[static_cast<std::size_t>(step)], plan));
  }
  return longest;
}

}  // namespace

Plan draw_plan(std::uint64_t seed) {
  Draws draws(seed);
  Plan plan{};
  plan.hosts = static_cast<int>(2 + draws.below(draws.once_in(12) ? 63 : 7));
  plan.ranks = plan.hosts <= 16 && draws.once_in(4) ? 1 + draws.one_of(3) : 1;
  const int ranks = plan.hosts * plan.ranks;
  plan.model.latency = microseconds(1 + draws.size(8));
  plan.model.jitter = draws.once_in(2) ? microseconds(draws.size(10)) : microseconds(0);
  plan.model.overhead = std::chrono::nanoseconds(draws.size(12));
  plan.model.bytes_per_second = 1e7 * static_cast<double>(1 + draws.size(10));
  plan.timeout = milliseconds(1000 + draws.below(2000));
  const int steps = 1 + draws.one_of(6);
  for (int i = 0; i < steps; ++i) plan.steps.push_back(draw_step(draws, ranks));
  if (draws.once_in(2)) {
    plan.fault.kind = static_cast<FaultKind>(draws.one_of(kDrawnKinds));
    plan.fault.rank = draws.one_of(ranks);
    plan.fault.at = microseconds(draws.size(21));
    plan.fault.factor = static_cast<double>(1 + draws.size(5));
    plan.fault.step = draws.one_of(steps);
    const bool leaves = plan.fault.kind == FaultKind::left;
    if (leaves && draws.once_in(2)) plan.fault.kind = FaultKind::interrupted_call;
  }
  // Drawn last: the others are what they were before there were such steps.
  for (Step& step : plan.steps) {
    if (draws.once_in(6)) step.kind = StepKind::one_way_broadcast;
  }
  if (plan.fault.kind == FaultKind::none && draws.once_in(3)) {
    plan.fault.kind = FaultKind::mistaken;
    plan.fault.rank = draws.one_of(ranks);
    plan.fault.step = draws.one_of(steps);
    if (draws.once_in(2)) {
      plan.steps[static_cast<std::size_t>(plan.fault.step)].kind = StepKind::one_way_broadcast;
    }
  }
  if (draws.once_in(2)) plan.room = 1 + draws.size(18);
  const bool is_mistaken = plan.fault.kind == FaultKind::mistaken;
  plan.fault.stops_finder = is_mistaken && plan.ranks > 1 && draws.once_in(2);
  const bool is_few = plan.hosts <= 4 && plan.ranks == 1;
  if (plan.room > 0 && is_few && !is_mistaken && draws.once_in(8)) draw_trickle(draws, plan);
  if (Wire::has_lanes(plan.hosts, plan.ranks)) draw_lanes(draws, plan);
  for (Step& step : plan.steps) {  // likewise
    const bool may_reduce =
        step.kind == StepKind::one_way_broadcast && ranks <= Wire::kMostWithoutAhead;
    if (may_reduce && draws.once_in(2)) step.kind = StepKind::one_way_reduce;
  }
  if (plan.fault.stops_finder && plan.ranks > 2) {  // likewise; somebody is left who can tell
    plan.fault.stops_hearers = draws.one_of(plan.ranks - 1);
  }
  plan.moves_on = std::max(plan.moves_on, time_on_link_when_struck(plan));
  return plan;
}

std::string describe(const Plan& plan) {
  const auto text = [](microseconds time) { return std::to_string(time.count()) + " us"; };
  std::string line = std::to_string(plan.hosts) + "x" + std::to_string(plan.ranks) + ", latency " +
                     text(std::chrono::duration_cast<microseconds>(plan.model.latency)) +
                     ", jitter " +
                     text(std::chrono::duration_cast<microseconds>(plan.model.jitter)) + ", " +
                     std::to_string(plan.model.bytes_per_second / 1e6) + " MB/s, deadline " +
                     text(plan.timeout) + ", room " + std::to_string(plan.room) + ";";
  for (const Step& step : plan.steps) {
    line += " " + std::string(kStepNames[static_cast<std::size_t>(step.kind)]) + "(" +
            std::to_string(step.count) + " " + std::string(name_of(step.dtype)) + ", root " +
            std::to_string(step.root) +
            (step.odd == kNobody ? "" : ", odd " + std::to_string(step.odd)) + ", rank " +
            std::to_string(step.late) + " late by " + text(step.late_by) + ")";
  }
  const Fault& fault = plan.fault;
  line += "; fault: " + std::string(kFaultNames[static_cast<std::size_t>(fault.kind)]);
  if (fault.kind != FaultKind::none) {
    line += ", rank " + std::to_string(fault.rank) + " at " + text(fault.at) + ", step " +
            std::to_string(fault.step) + ", factor " + std::to_string(fault.factor) +
            (fault.stops_finder ? ", who finds it is stopped" : "") +
            (fault.stops_hearers == 0
                 ? ""
                 : ", and " + std::to_string(fault.stops_hearers) + " who hear of it");
  }
  return line;
}

}  // namespace tutti::test::simulated
