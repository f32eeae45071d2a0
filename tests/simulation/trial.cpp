// Runs a plan on simulated hosts.
#include "simulation/trial.hpp"

#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/finally.hpp"
#include "comm/failure.hpp"
#include "comm/hosts/group/notes.hpp"
#include "comm/simulation/wire.hpp"
#include "simulation/judge.hpp"
#include "simulation/steps.hpp"
#include "tutti/error.hpp"

namespace tutti::test::simulated {
namespace {

using simulation::Cluster;
using simulation::Interrupted;
using simulation::Process;
using simulation::Scheduler;
using simulation::SimulatedWire;

/** Until what is stopped for good goes on, to hear what the others did meanwhile. */
constexpr std::chrono::seconds kStopped{60};
constexpr std::chrono::seconds kHang{200};
/** From when the ranks of a host know of a mismatch until others are told, where they are late. */
constexpr std::chrono::milliseconds kToTell{150};
/** Leaves its communicator in the middle. */
struct Leaves {};

class Trial {
 public:
  Trial(const Plan& plan, std::uint64_t seed)
      : plan_(plan),
        cluster_(plan.hosts, plan.ranks, plan.model, seed),
        course_{std::vector<Ending>(static_cast<std::size_t>(cluster_.size())),
                cluster_.scheduler().now()} {
    cluster_.set_room(plan.room);
  }

  Outcome run() {
    arrange_fault();
    cluster_.start([this](Process& process) { live(process); });
    cluster_.scheduler().run(course_.begun + kHang);
    return judge(plan_, cluster_, course_);
  }

 private:
  void arrange_fault();
  void live(Process& process);
  void work(SimulatedWire& wire, Process& process);
  /** To the ranks of its host, unless one has been shown. */
  void show(const Process& process, const char* mismatch, Witnesses witnesses);
  /** What one of these has shown; throws it. */
  void look_at_shown(SimulatedWire& wire, Process& process);
  int host_at_fault() const { return cluster_.layout().host_of(plan_.fault.rank); }

  const Plan& plan_;
  Cluster cluster_;
  Course course_;
  std::set<int> computing_;  // before a call that they come late to
  /** The mismatch of which the ranks of a host know. */
  struct Shown {
    FailureReport report{};
    std::set<int> heard{};  ///< the ranks that have, besides who has shown it
  };
  std::map<int, Shown> shown_;  // by host
};

void Trial::arrange_fault() {
  const Fault& fault = plan_.fault;
  const int rank = fault.rank;
  const int host = host_at_fault();
  Scheduler& scheduler = cluster_.scheduler();
  const auto strike = [&](std::function<void()> what) {
    scheduler.at(course_.begun + fault.at, [this, what = std::move(what)] {
      course_.struck = cluster_.scheduler().now();
      course_.late = computing_;
      what();
    });
  };
  const auto mend = [&](Scheduler::Duration after, std::function<void()> what) {
    scheduler.at(course_.begun + fault.at + after, std::move(what));
  };
  switch (fault.kind) {
    case FaultKind::killed:
      return strike([this, rank] { cluster_.kill(rank); });
    case FaultKind::host_killed:
      return strike([this, host] {
        for (const int one : cluster_.layout().ranks_of(host)) cluster_.kill(one);
      });
    case FaultKind::crashed:
      return strike([this, host] { cluster_.crash(host); });
    case FaultKind::cut_off:
      return strike([this, host] { cluster_.cut_off(host); });
    case FaultKind::stopped:
      strike([this, rank] { cluster_.stop(rank); });
      return mend(kStopped, [this, rank] { cluster_.continue_process(rank); });
    case FaultKind::host_stopped:
      strike([this, host] {
        for (const int one : cluster_.layout().ranks_of(host)) cluster_.stop(one);
      });
      return mend(kStopped, [this, host] {
        for (const int one : cluster_.layout().ranks_of(host)) cluster_.continue_process(one);
      });
    case FaultKind::interrupted:
      strike([this, rank] { cluster_.stop(rank); });
      return mend(plan_.timeout / 4, [this, rank] { cluster_.continue_process(rank); });
    case FaultKind::unplugged:
      strike([this, host] { cluster_.cut_off(host); });
      return mend(plan_.timeout / 4, [this, host] { cluster_.plug_in(host); });
    case FaultKind::slowed:
      return strike([this, host] { cluster_.network().slow_down(host, plan_.fault.factor); });
    case FaultKind::interrupted_call:
      return strike([this, rank] {
        if (!course_.of(rank).ended) cluster_.process(rank).interrupt();
      });
    default:
      return;
  }
}

void Trial::show(const Process& process, const char* mismatch, Witnesses witnesses) {
  Shown shown;
  shown.report.set_mismatch(mismatch, witnesses);
  shown_.emplace(process.host(), shown);
}

void Trial::look_at_shown(SimulatedWire& wire, Process& process) {
  const auto shown = shown_.find(process.host());
  if (shown == shown_.end()) return;
  try {
    shown->second.report.raise();
  } catch (const NeighboursMismatch& error) {
    std::set<int>& heard = shown->second.heard;
    heard.insert(wire.rank());
    if (std::ssize(heard) <= plan_.fault.stops_hearers) {
      course_.stopped.insert(wire.rank());
      process.compute(kStopped);
    }
    const Herald herald = std::ssize(heard) <= kStandIns ? Herald::stand_in : Herald::nobody;
    wire.watch().announce_mismatch(error.what(), herald);
    throw;
  }
}

void Trial::work(SimulatedWire& wire, Process& process) {
  std::vector<int> members(static_cast<std::size_t>(wire.size()));
  std::iota(members.begin(), members.end(), 0);
  Team all(wire, members, plan_.ranks == 1);
  Notes notes(wire);
  // The ranks of the host hear first, and may leave before the others do.
  const auto tell_others = [&](const OneSidedMismatch& error) {
    show(process, error.what(), Witnesses::two);
    const bool is_stopped = plan_.fault.stops_finder;
    if (is_stopped) course_.stopped.insert(wire.rank());
    if (plan_.ranks > 1) process.compute(is_stopped ? kStopped : Scheduler::Duration(kToTell));
    wire.watch().announce_mismatch(error.what());
  };
  wire.watch().set_idle({[&](Wire::Side) {
                           look_at_shown(wire, process);
                           try {
                             notes.look();
                           } catch (const OneSidedMismatch& error) {
                             tell_others(error);
                             throw;
                           }
                         },
                         {}});
  const Finally end([&wire] { wire.watch().set_idle({}); });
  Caller caller{all, notes};
  std::optional<Team> lane;
  std::optional<Team> inside;
  const Layout& layout = cluster_.layout();
  if (Wire::has_lanes(layout)) {
    const std::span neighbours = layout.ranks_of(process.host());
    inside.emplace(wire, std::vector<int>(neighbours.begin(), neighbours.end()));
    lane.emplace(wire, layout.lane_of(wire.rank()), false,
                 AllReduce::LaneNumber{layout.local_rank_of(wire.rank()), plan_.ranks});
    caller.inside = &*inside;
    caller.lane = &*lane;
  }
  for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
    const Step& step = plan_.steps[i];
    if (static_cast<int>(i) == plan_.fault.step && wire.rank() == plan_.fault.rank) {
      if (plan_.fault.kind == FaultKind::absent || plan_.fault.kind == FaultKind::left) {
        course_.struck = cluster_.scheduler().now();
      }
      if (plan_.fault.kind == FaultKind::absent) process.compute(plan_.timeout * 4);
      if (plan_.fault.kind == FaultKind::left) throw Leaves();
    }
    if (step.late == wire.rank()) {
      computing_.insert(step.late);
      process.compute(step.late_by);
      computing_.erase(step.late);
    }
    const bool makes_mistakes = plan_.fault.kind == FaultKind::mistaken;
    const bool is_mistaken = makes_mistakes && static_cast<int>(i) == plan_.fault.step &&
                             wire.rank() == plan_.fault.rank;
    if (is_mistaken) course_.struck = cluster_.scheduler().now();
    const WaitGraph::CallScope call(process.wait_graph());
    try {
      run_step(caller, step, i,
               is_mistaken      ? Manner::mistaken
               : makes_mistakes ? Manner::compared
                                : Manner::plain);
    } catch (const OneSidedMismatch& error) {
      tell_others(error);
      throw;
    }
  }
}

void Trial::live(Process& process) {
  Ending& ending = course_.of(process.rank());
  SimulatedWire wire(process, 1, plan_.timeout);
  try {
    wire.connect();
    work(wire, process);
    ending.completed = true;
  } catch (const Leaves&) {
    ending.left = true;
  } catch (const Interrupted&) {
    ending.left = true;
  } catch (const PeerLost& error) {
    ending.lost = error.ranks();
    ending.text = error.reason();
  } catch (const MismatchError& error) {
    ending.mismatch = true;
    ending.text = error.what();
    show(process, error.what(), Witnesses::all);
    wire.watch().note_mismatch(error.what());
  } catch (const std::exception& error) {
    ending.other_error = true;
    ending.text = error.what();
  }
  ending.at = cluster_.scheduler().now();
  ending.ended = true;
  try {
    wire.leave();
  } catch (const Interrupted&) {  // too late
  }
}

}  // namespace

Outcome run_trial(const Plan& plan, std::uint64_t seed) { return Trial(plan, seed).run(); }

std::string report(const Plan& plan, std::uint64_t seed, const Outcome& outcome) {
  constexpr std::size_t kMost = 5;
  const std::string name = "seed " + std::to_string(seed);
  std::string text = name + ": " + describe(plan) + outcome.story + "\n";
  const std::size_t count = std::min(outcome.complaints.size(), kMost);
  for (std::size_t i = 0; i < count; ++i) text += name + " FAILED: " + outcome.complaints[i] + "\n";
  return text;
}

}  // namespace tutti::test::simulated
