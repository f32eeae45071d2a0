// Runs a plan on simulated hosts, and judges how each rank has ended.
#include "simulation/trial.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

#include "base/finally.hpp"
#include "base/text.hpp"
#include "comm/hosts/group.hpp"
#include "comm/hosts/notes.hpp"
#include "comm/simulation/wire.hpp"
#include "device/cpu/reduction.hpp"
#include "simulation/steps.hpp"
#include "tutti/error.hpp"

namespace tutti::test::simulated {
namespace {

using simulation::Cluster;
using simulation::Interrupted;
using simulation::Process;
using simulation::Scheduler;
using simulation::SimulatedWire;

/** How much later than its deadline each rank must know of a loss. */
constexpr std::chrono::milliseconds kToFindOut{1000};
/** Until what is stopped for good goes on, to hear what the others did meanwhile. */
constexpr std::chrono::seconds kStopped{60};
constexpr std::chrono::seconds kHang{200};
/** What is under way on a slow link, before a question or its answer, takes longer than anybody
 * waits for it. */
constexpr std::chrono::seconds kNoAnswer{1};
/** Leaves its communicator in the middle. */
struct Leaves {};

/** How a rank has ended. */
struct Ending {
  bool ended = false;
  bool completed = false;
  bool left = false;
  bool mismatch = false;
  std::vector<int> lost;
  std::string text;  ///< of its exception
  bool other_error = false;
  Scheduler::Time at;
};

class Trial {
 public:
  Trial(const Plan& plan, std::uint64_t seed)
      : plan_(plan),
        cluster_(plan.hosts, plan.ranks, plan.model, seed),
        endings_(static_cast<std::size_t>(cluster_.size())),
        begun_(cluster_.scheduler().now()) {}

  Outcome run() {
    arrange_fault();
    cluster_.start([this](Process& process) { live(process); });
    cluster_.scheduler().run(begun_ + kHang);
    judge();
    return std::move(outcome_);
  }

 private:
  void arrange_fault();
  void live(Process& process);
  void work(SimulatedWire& wire, Process& process);
  void judge();
  void judge(int rank, const Ending& ending);
  void judge_mismatch(const std::string& who, const Ending& ending);
  bool is_lost(int rank, int by) const;
  std::vector<int> lost_to(int by) const;
  bool is_stopped(int rank) const;
  bool is_too_slow() const;
  void complain(const std::string& what) { outcome_.complaints.push_back(what); }
  Ending& ending_of(int rank) { return endings_[static_cast<std::size_t>(rank)]; }
  int host_at_fault() const { return cluster_.layout().host_of(plan_.fault.rank); }

  const Plan& plan_;
  Cluster cluster_;
  std::vector<Ending> endings_;
  Scheduler::Time begun_;
  std::optional<Scheduler::Time> struck_;
  Outcome outcome_;
};

// --- What happens -------------------------------------------------------------------------------

void Trial::arrange_fault() {
  const Fault& fault = plan_.fault;
  const int rank = fault.rank;
  const int host = host_at_fault();
  Scheduler& scheduler = cluster_.scheduler();
  const auto strike = [&](std::function<void()> what) {
    scheduler.at(begun_ + fault.at, [this, what = std::move(what)] {
      struck_ = cluster_.scheduler().now();
      what();
    });
  };
  const auto mend = [&](Scheduler::Duration after, std::function<void()> what) {
    scheduler.at(begun_ + fault.at + after, std::move(what));
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
        if (!ending_of(rank).ended) cluster_.process(rank).interrupt();
      });
    default:
      return;
  }
}

void Trial::work(SimulatedWire& wire, Process& process) {
  std::vector<int> members(static_cast<std::size_t>(wire.size()));
  std::iota(members.begin(), members.end(), 0);
  HostGroup group(wire, members);
  Notes notes(wire);
  const auto tell_others = [&wire](const OneSidedMismatch& error) {
    wire.watch().announce_mismatch(error.what());
  };
  wire.watch().set_idle({[&](Wire::Side) {
                           try {
                             notes.look();
                           } catch (const OneSidedMismatch& error) {
                             tell_others(error);
                             throw;
                           }
                         },
                         {}});
  const Finally end([&wire] { wire.watch().set_idle({}); });
  Caller caller{group, notes};
  for (std::size_t i = 0; i < plan_.steps.size(); ++i) {
    const Step& step = plan_.steps[i];
    if (static_cast<int>(i) == plan_.fault.step && wire.rank() == plan_.fault.rank) {
      if (plan_.fault.kind == FaultKind::absent || plan_.fault.kind == FaultKind::left) {
        struck_ = cluster_.scheduler().now();
      }
      if (plan_.fault.kind == FaultKind::absent) process.compute(plan_.timeout * 4);
      if (plan_.fault.kind == FaultKind::left) throw Leaves();
    }
    if (step.late == wire.rank()) process.compute(step.late_by);
    const bool makes_mistakes = plan_.fault.kind == FaultKind::mistaken;
    const bool is_mistaken = makes_mistakes && static_cast<int>(i) == plan_.fault.step &&
                             wire.rank() == plan_.fault.rank;
    if (is_mistaken) struck_ = cluster_.scheduler().now();
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
  Ending& ending = ending_of(process.rank());
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

// --- What is said of it -------------------------------------------------------------------------

/** Whether rank `by` has to say of `rank` that it is lost, if it says so of anybody. */
bool Trial::is_lost(int rank, int by) const {
  const Layout& layout = cluster_.layout();
  switch (plan_.fault.kind) {
    case FaultKind::killed:
    case FaultKind::stopped:
    case FaultKind::absent:
    case FaultKind::left:
    case FaultKind::interrupted_call:
    case FaultKind::mistaken:
      return rank == plan_.fault.rank;
    case FaultKind::host_killed:
    case FaultKind::host_stopped:
    case FaultKind::crashed:
      return layout.host_of(rank) == host_at_fault();
    case FaultKind::cut_off:  // those on one side blame the other
      return (layout.host_of(rank) == host_at_fault()) != (layout.host_of(by) == host_at_fault());
    case FaultKind::slowed:
      return is_too_slow() && layout.host_of(rank) == host_at_fault();
    default:
      return false;
  }
}

/** Whether a host looks like one that does not answer: then it may be named, and need not be. */
bool Trial::is_too_slow() const {
  return plan_.fault.kind == FaultKind::slowed &&
         cluster_.network().longest_queue(host_at_fault()) > kNoAnswer;
}

/** Whom rank `by` has to name. */
std::vector<int> Trial::lost_to(int by) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < cluster_.size(); ++rank) {
    if (is_lost(rank, by)) ranks.push_back(rank);
  }
  return ranks;
}

bool Trial::is_stopped(int rank) const {
  return plan_.fault.kind == FaultKind::host_stopped
             ? cluster_.layout().host_of(rank) == host_at_fault()
             : rank == plan_.fault.rank;
}

void Trial::judge(int rank, const Ending& ending) {
  const std::string who = "rank " + std::to_string(rank);
  const FaultKind kind = plan_.fault.kind;
  const bool victim = (kind == FaultKind::killed && rank == plan_.fault.rank) ||
                      ((kind == FaultKind::crashed || kind == FaultKind::host_killed) &&
                       cluster_.layout().host_of(rank) == host_at_fault());
  if (!ending.ended) {
    if (!victim) complain(who + " hangs");
    return;
  }
  if (ending.other_error) return complain(who + ": " + ending.text);
  if (ending.completed || ending.left) return;
  if (ending.mismatch) return judge_mismatch(who, ending);
  // Who has made one call less ends before the others.
  if (kind == FaultKind::mistaken && !ending_of(plan_.fault.rank).completed) {
    // Those who had got all before the mistake shows have left, and cannot be waited for.
    const bool had_left = std::all_of(ending.lost.begin(), ending.lost.end(), [&](int other) {
      return ending_of(other).completed && ending_of(other).at <= ending.at;
    });
    if (had_left) return;
    return complain(who + " blames " + ranks_text(ending.lost) + " for a mismatch");
  }
  const bool slept = is_stopped(rank);
  std::vector<int> named = ending.lost;
  std::sort(named.begin(), named.end());
  const std::vector<int> lost = lost_to(rank);
  std::vector<int> needed;  // who had ended by then need not be named
  std::copy_if(lost.begin(), lost.end(), std::back_inserter(needed), [&](int other) {
    const Ending& theirs = ending_of(other);
    return !theirs.completed || theirs.at > ending.at;
  });
  // Who was stopped itself hears what others say, of some who were stopped with it perhaps.
  const bool right = std::includes(lost.begin(), lost.end(), named.begin(), named.end()) &&
                     (slept || is_too_slow() ||
                      std::includes(named.begin(), named.end(), needed.begin(), needed.end()));
  if (!right) {
    complain(who + " names " + ranks_text(named) + ", but lost " + ranks_text(lost) + ": " +
             ending.text);
  }
  if (!struck_) return complain(who + " lost somebody before anything had happened");
  const auto after = std::chrono::duration_cast<std::chrono::microseconds>(ending.at - *struck_);
  if (!slept && !is_too_slow()) outcome_.after = std::max(outcome_.after, after);
  const bool leaves =
      kind == FaultKind::left || kind == FaultKind::interrupted_call || kind == FaultKind::mistaken;
  auto limit = std::chrono::microseconds(leaves ? kToFindOut : plan_.timeout + kToFindOut);
  for (const Step& step : plan_.steps) limit += step.late_by;
  if (!slept && !is_too_slow() && after > limit) {
    complain(who + " knew of it " + std::to_string(after.count()) + " us later, not within " +
             std::to_string(limit.count()));
  }
}

/** Who has made a call that goes one way may have returned before. */
void Trial::judge_mismatch(const std::string& who, const Ending& ending) {
  if (plan_.fault.kind != FaultKind::mistaken || !struck_) {
    return complain(who + ": " + ending.text);
  }
  auto limit = std::chrono::microseconds(kToFindOut);
  for (const Step& step : plan_.steps) limit += step.late_by;
  const auto after = std::chrono::duration_cast<std::chrono::microseconds>(ending.at - *struck_);
  if (after > limit) {
    complain(who + " knew of the mismatch " + std::to_string(after.count()) +
             " us later, not within " + std::to_string(limit.count()));
  }
}

void Trial::judge() {
  std::set<std::string> stories;
  for (int rank = 0; rank < cluster_.size(); ++rank) {
    const Ending& ending = ending_of(rank);
    judge(rank, ending);
    std::string story = !ending.ended      ? "has not ended"
                        : ending.completed ? "completed"
                        : ending.left      ? "left"
                        : ending.mismatch  ? "mismatch: " + ending.text
                                           : ranks_text(ending.lost) + ": " + ending.text;
    const bool other_side = plan_.fault.kind == FaultKind::cut_off &&
                            cluster_.layout().host_of(rank) == host_at_fault();
    if (!ending.lost.empty() && !other_side) stories.insert(ranks_text(ending.lost));
    outcome_.story += "\n  rank " + std::to_string(rank) + " " + story;
    if (ending.ended) {
      outcome_.story +=
          " (" + std::to_string((ending.at - begun_) / std::chrono::microseconds(1)) + " us)";
    }
  }
  if (stories.size() > 1) complain("there is more than one story");
  const bool is_last = plan_.fault.step + 1 == static_cast<int>(plan_.steps.size());
  const bool all_completed = std::all_of(endings_.begin(), endings_.end(),
                                         [](const Ending& one) { return one.completed; });
  if (plan_.fault.kind == FaultKind::mistaken && !is_last && all_completed) {
    complain("nobody has noticed that one made another call");
  }
}

}  // namespace

Outcome run_trial(const Plan& plan, std::uint64_t seed) { return Trial(plan, seed).run(); }

}  // namespace tutti::test::simulated
