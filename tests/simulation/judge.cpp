// Judges how each rank has ended.
#include "simulation/judge.hpp"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/text.hpp"
#include "simulation/steps.hpp"

namespace tutti::test::simulated {
namespace {

using simulation::Cluster;
using simulation::Scheduler;

/** How much later than its deadline each rank must know of a loss. */
constexpr std::chrono::milliseconds kToFindOut{1000};
/** What is under way on a slow link, before a question or its answer, takes longer than anybody
 * waits for it. */
constexpr std::chrono::seconds kNoAnswer{1};
/** From the first question to the verdict, at most. */
constexpr std::chrono::seconds kToAsk{3};

/** How PeerLost says it of a single one. */
constexpr std::string_view kProcessHasEnded = "its process has ended";

class Judge {
 public:
  Judge(const Plan& plan, const Cluster& cluster, const Course& course)
      : plan_(plan), cluster_(cluster), course_(course) {}
  Outcome judge();

 private:
  void judge(int rank, const Ending& ending);
  void judge_time(int rank, const Ending& ending);
  void judge_mismatch(int rank, const Ending& ending);
  void judge_ended(int rank, const Ending& ending);
  bool is_lost(int rank, int by) const;
  std::vector<int> lost_to(int by) const;
  bool is_stopped(int rank) const;
  bool are_late_ones(const std::vector<int>& named) const;
  bool knew_alone(int rank) const;
  bool names_lone_finders(const Ending& ending) const;
  bool is_too_slow() const;
  Scheduler::Time first_loss() const;
  bool is_out_of_sight() const;
  void complain(const std::string& what) { outcome_.complaints.push_back(what); }
  int host_at_fault() const { return cluster_.layout().host_of(plan_.fault.rank); }

  const Plan& plan_;
  const Cluster& cluster_;
  const Course& course_;
  Outcome outcome_;
};

/** Whether rank `by` has to say of `rank` that it is lost, if it says so of anybody. */
bool Judge::is_lost(int rank, int by) const {
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

/** When the first rank has lost somebody. */
Scheduler::Time Judge::first_loss() const {
  auto first = Scheduler::Time::max();
  for (const Ending& ending : course_.endings) {
    if (!ending.lost.empty()) first = std::min(first, ending.at);
  }
  return first;
}

/** Whether a host looked like one that does not answer when somebody was lost: then it may be
 * named. */
bool Judge::is_too_slow() const {
  if (plan_.fault.kind != FaultKind::slowed) return false;
  const Scheduler::Time end = first_loss();
  return cluster_.network().longest_queue(host_at_fault(), end - kToAsk, end) > kNoAnswer;
}

/** Whom rank `by` has to name. */
std::vector<int> Judge::lost_to(int by) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < cluster_.size(); ++rank) {
    if (is_lost(rank, by)) ranks.push_back(rank);
  }
  return ranks;
}

bool Judge::is_stopped(int rank) const {
  return plan_.fault.kind == FaultKind::host_stopped
             ? cluster_.layout().host_of(rank) == host_at_fault()
             : rank == plan_.fault.rank;
}

/** Whether a host was stopped of which ranks had not come, and all these are in `named`, in
 * ascending order: the others may have answered before. */
bool Judge::are_late_ones(const std::vector<int>& named) const {
  if (plan_.fault.kind != FaultKind::host_stopped) return false;
  std::vector<int> late;
  std::copy_if(course_.late.begin(), course_.late.end(), std::back_inserter(late),
               [&](int rank) { return cluster_.layout().host_of(rank) == host_at_fault(); });
  return !late.empty() && std::includes(named.begin(), named.end(), late.begin(), late.end());
}

void Judge::judge(int rank, const Ending& ending) {
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
  if (ending.mismatch) return judge_mismatch(rank, ending);
  if (names_lone_finders(ending)) return judge_time(rank, ending);
  // Who has made one call less ends before the others.
  if (kind == FaultKind::mistaken && !course_.of(plan_.fault.rank).completed) {
    // Those who had got all before the mistake shows have left, and cannot be waited for.
    const bool had_left = std::all_of(ending.lost.begin(), ending.lost.end(), [&](int other) {
      return course_.of(other).completed && course_.of(other).at <= ending.at;
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
    const Ending& theirs = course_.of(other);
    return !theirs.completed || theirs.at > ending.at;
  });
  // Who was stopped itself hears what others say, of some who were stopped with it perhaps.
  const bool right = std::includes(lost.begin(), lost.end(), named.begin(), named.end()) &&
                     (slept || is_too_slow() || are_late_ones(named) ||
                      std::includes(named.begin(), named.end(), needed.begin(), needed.end()));
  if (!right) {
    complain(who + " names " + ranks_text(named) + ", but lost " + ranks_text(lost) + ": " +
             ending.text);
  }
  if (!course_.struck) return complain(who + " lost somebody before anything had happened");
  judge_time(rank, ending);
}

/** Whether `rank` was stopped when it knew of a mismatch, and nobody could tell of it: the others
 * of its host were stopped likewise, or have completed their calls. */
bool Judge::knew_alone(int rank) const {
  const Layout& layout = cluster_.layout();
  const std::span<const int> ranks = layout.ranks_of(layout.host_of(rank));
  return course_.stopped.contains(rank) && std::all_of(ranks.begin(), ranks.end(), [&](int one) {
           return course_.stopped.contains(one) || course_.of(one).completed;
         });
}

/** They are stopped, and nothing else can be known. */
bool Judge::names_lone_finders(const Ending& ending) const {
  return course_.struck && !ending.lost.empty() &&
         std::all_of(ending.lost.begin(), ending.lost.end(),
                     [this](int rank) { return knew_alone(rank); });
}

/** Those who were stopped, or stand behind a slow link, may hear of it later. */
void Judge::judge_time(int rank, const Ending& ending) {
  const FaultKind kind = plan_.fault.kind;
  const bool too_slow = is_too_slow();
  if (is_stopped(rank) || (too_slow && cluster_.layout().host_of(rank) == host_at_fault())) return;
  const auto begin = too_slow ? first_loss() : *course_.struck;
  const auto after = std::chrono::duration_cast<std::chrono::microseconds>(ending.at - begin);
  if (!too_slow) outcome_.after = std::max(outcome_.after, after);
  const bool is_told = too_slow || kind == FaultKind::left || kind == FaultKind::interrupted_call ||
                       (kind == FaultKind::mistaken && !names_lone_finders(ending));
  auto limit =
      std::chrono::microseconds(is_told ? kToFindOut : plan_.timeout + kToFindOut + plan_.moves_on);
  for (const Step& step : plan_.steps) limit += step.late_by;
  if (after > limit) {
    complain("rank " + std::to_string(rank) + " knew of it " + std::to_string(after.count()) +
             " us later, not within " + std::to_string(limit.count()));
  }
}

/** Who has made a call that goes one way may have returned before. */
void Judge::judge_mismatch(int rank, const Ending& ending) {
  const std::string who = "rank " + std::to_string(rank);
  if (plan_.fault.kind != FaultKind::mistaken || !course_.struck) {
    return complain(who + ": " + ending.text);
  }
  if (course_.stopped.contains(rank)) return;
  auto limit = std::chrono::microseconds(kToFindOut);
  for (const Step& step : plan_.steps) limit += step.late_by;
  const auto after =
      std::chrono::duration_cast<std::chrono::microseconds>(ending.at - *course_.struck);
  if (after > limit) {
    complain(who + " knew of the mismatch " + std::to_string(after.count()) +
             " us later, not within " + std::to_string(limit.count()));
  }
}

/** To a process that has ended nothing is sent any more, by no rank that says so. */
void Judge::judge_ended(int rank, const Ending& ending) {
  const std::set<int>& ended = cluster_.process(rank).ended();
  for (const int other : ended) {
    if (cluster_.process(other).is_killed()) continue;
    complain("rank " + std::to_string(rank) + " sends nothing to rank " + std::to_string(other) +
             ", whose process lives");
  }
  if (ending.text != kProcessHasEnded) return;
  for (const int other : ending.lost) {
    if (ended.contains(other)) continue;
    complain("rank " + std::to_string(rank) + " may send something to rank " +
             std::to_string(other) + ", whose process has ended");
  }
}

/** Whether nobody can know of a mistake: no call comes after it, or it leaves out one of several
 * equal calls that go one way, and none comes after these. */
bool Judge::is_out_of_sight() const {
  const auto mistaken = plan_.steps.begin() + plan_.fault.step;
  return std::all_of(mistaken + 1, plan_.steps.end(), [&](const Step& step) {
    return is_left_out(*mistaken) && step.kind == mistaken->kind && step.root == mistaken->root &&
           step.count == mistaken->count;
  });
}

Outcome Judge::judge() {
  std::set<std::string> stories;
  for (int rank = 0; rank < cluster_.size(); ++rank) {
    const Ending& ending = course_.of(rank);
    judge(rank, ending);
    judge_ended(rank, ending);
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
      outcome_.story += " (" +
                        std::to_string((ending.at - course_.begun) / std::chrono::microseconds(1)) +
                        " us)";
    }
  }
  if (stories.size() > 1) complain("there is more than one story");
  const bool all_completed = std::all_of(course_.endings.begin(), course_.endings.end(),
                                         [](const Ending& one) { return one.completed; });
  if (plan_.fault.kind == FaultKind::mistaken && !is_out_of_sight() && all_completed) {
    complain("nobody has noticed that one made another call");
  }
  return std::move(outcome_);
}

}  // namespace

Outcome judge(const Plan& plan, const Cluster& cluster, const Course& course) {
  return Judge(plan, cluster, course).judge();
}

}  // namespace tutti::test::simulated
