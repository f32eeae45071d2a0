// Asks, follows the answers, and judges.
#include "comm/mpi/inquiry.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "base/text.hpp"

namespace tutti::mpi {
namespace {

// Ranks that wait look for messages once a millisecond, inside a host every 50 ms: if they get a
// core, of which a busy machine has few.
constexpr std::chrono::milliseconds kForAnAnswer{1300};
// Late enough for the other hosts' kernels to have acknowledged the leader's byte.
constexpr std::chrono::milliseconds kToAskAgain{350};

}  // namespace

Inquiry::Inquiry(Watch& watch, std::span<const int> awaited, std::chrono::milliseconds timeout,
                 Clock::time_point passed)
    : watch_(watch),
      graph_(watch.session().wait_graph()),
      awaited_(awaited.begin(), awaited.end()),
      timeout_(timeout),
      asks_leader_(watch.layout() && watch.layout()->local_rank_of(watch.rank()) != 0),
      last_progress_(Clock::now() - timeout) {
  RecycledVector<int> ranks;
  for (const int rank : awaited_) suspect(watch_.members()[static_cast<std::size_t>(rank)], ranks);
  if (asks_leader_) {
    ranks.push_back(leader_of_host());
    later_.emplace(kToAskAgain);
  }
  watch_.ping_hosts();
  graph_.add(*this, passed);
  graph_.ask(*this, ranks);
}

Inquiry::~Inquiry() { graph_.remove(*this); }

int Inquiry::leader_of_host() const {
  const Layout& layout = *watch_.layout();
  const int leader = layout.ranks_of(layout.host_of(watch_.rank())).front();
  return watch_.members()[static_cast<std::size_t>(leader)];
}

void Inquiry::suspect(int rank, RecycledVector<int>& fresh) {
  const auto known = [rank](const Suspect& one) { return one.rank == rank; };
  if (rank == watch_.session().rank()) return;
  if (std::any_of(suspects_.begin(), suspects_.end(), known)) return;
  suspects_.push_back({rank, Deadline(kForAnAnswer)});
  fresh.push_back(rank);
}

RecycledVector<int> Inquiry::hear(int rank, const Answer& answer) {
  const std::lock_guard lock(mutex_);
  RecycledVector<int> fresh;
  const auto entries = std::span(answer.entries);
  const auto ranks = entries.first(static_cast<std::size_t>(answer.awaited_count));
  const auto silent =
      entries.subspan(ranks.size(), static_cast<std::size_t>(answer.unreachable_count));
  if (asks_leader_ && rank == leader_of_host()) told_.assign(silent.begin(), silent.end());
  const auto who = std::find_if(suspects_.begin(), suspects_.end(),
                                [rank](const Suspect& one) { return one.rank == rank; });
  if (who == suspects_.end()) return fresh;
  who->answered = true;
  who->goes_on = answer.idle_later < timeout_.count();
  last_progress_ = std::max(last_progress_, Clock::now() - std::chrono::milliseconds(answer.idle));
  for (const int next : ranks) suspect(next, fresh);
  return fresh;
}

/** Hosts that cannot be reached, if one of the silent is there; otherwise the silent. */
Verdict Inquiry::blame(const std::vector<int>& silent) const {
  Verdict verdict;
  std::vector<int>& ranks = verdict.loss.ranks;
  for (const int one : silent) {
    if (const int rank = watch_.rank_of(one); rank >= 0) ranks.push_back(rank);
  }
  std::vector<int> hosts = watch_.unreachable_hosts();
  for (const int one : told_) {
    if (const int rank = watch_.rank_of(one); rank >= 0) {
      hosts.push_back(watch_.layout()->host_of(rank));
    }
  }
  const auto is_there = [&](int rank) {
    return std::find(hosts.begin(), hosts.end(), watch_.layout()->host_of(rank)) != hosts.end();
  };
  if (!hosts.empty() && std::any_of(ranks.begin(), ranks.end(), is_there)) {
    verdict.loss = loss_of_hosts(*watch_.layout(), hosts);
  } else {
    verdict.loss.reason = "did not answer within " + seconds_text(timeout_);
  }
  return verdict;
}

std::optional<Verdict> Inquiry::verdict() {
  RecycledVector<int> again;
  std::optional<Verdict> verdict;
  {
    const std::lock_guard lock(mutex_);
    verdict = judge(again);
  }
  graph_.ask(*this, again);  // which takes a lock that is held while an answer is heard
  return verdict;
}

std::optional<Verdict> Inquiry::judge(RecycledVector<int>& again) {
  if (later_ && later_->expired()) {
    again.push_back(leader_of_host());
    later_.reset();  // once is enough
  }
  bool patient = false;
  bool undecided = false;
  std::vector<int> silent;
  for (Suspect& suspect : suspects_) {
    const bool in_time = !suspect.deadline.expired();
    patient = patient || in_time;
    if (suspect.answered) continue;
    undecided = undecided || in_time;
    silent.push_back(suspect.rank);
  }
  if (undecided) return std::nullopt;
  if (!silent.empty()) return blame(silent);
  // Everybody is alive: what they do may still end the wait, so the full time is given once.
  if (patient && !asked_twice_) return std::nullopt;
  const auto idle =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - last_progress_);
  if (idle < timeout_) return Verdict{{}, idle};
  if (!asked_twice_) {  // one may have stopped since its answer
    asked_twice_ = true;
    for (Suspect& suspect : suspects_) {
      again.push_back(suspect.rank);
      suspect = {suspect.rank, Deadline(kForAnAnswer)};
    }
    return std::nullopt;
  }
  const std::string reason = "did not answer within " + seconds_text(timeout_);
  for (const Suspect& suspect : suspects_) {
    const int rank = watch_.rank_of(suspect.rank);
    if (suspect.goes_on && rank >= 0) return Verdict{{{rank}, reason + "; it makes other calls"}};
  }
  return Verdict{{awaited_, reason + "; no rank has stopped, they wait for each other"}};
}

}  // namespace tutti::mpi
