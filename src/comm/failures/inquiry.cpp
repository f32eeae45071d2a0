// Asks, follows the answers, and judges.
#include "comm/failures/inquiry.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#include "base/text.hpp"

namespace tutti {
namespace {

// Ranks that wait look for messages once a millisecond, inside a host every 50 ms: if they get a
// core, of which a busy machine has few.
constexpr std::chrono::milliseconds kForAnAnswer{1300};
// Those who wait in a circle are asked once more.
constexpr std::chrono::milliseconds kToAskAgain{350};
// Hosts are pinged when questions begin, before a wait's deadline, and again when that has passed,
// where whoever waits asks for a verdict first: what was cut off by then is known half a second
// later, when the verdict comes. They are pinged once more when all are asked again.
constexpr std::chrono::milliseconds kToPingAgain{500};
// What others need to find out whom they wait for, once their deadline has passed.
constexpr std::chrono::milliseconds kForOthers{1000};

}  // namespace

Inquiry::Inquiry(Acquaintance acquaintance, WaitGraph& graph, Watch* watch, Wire::Side side,
                 std::span<const int> awaited, std::chrono::milliseconds timeout,
                 Clock::time_point passed)
    : graph_(graph),
      acquaintance_(std::move(acquaintance)),
      watch_(watch),
      side_(side),
      awaited_(awaited.begin(), awaited.end()),
      timeout_(timeout),
      passed_(passed),
      last_progress_(time_.now() - timeout) {
  RecycledVector<ProcessNumber> processes;
  for (const int rank : awaited_) {
    suspect(acquaintance_.members[static_cast<std::size_t>(rank)], processes);
  }
  if (watch_ != nullptr) {
    watch_->ping_hosts();
    ping_.emplace(kToPingAgain, time_);
  }
  graph_.add(*this, watch_ != nullptr ? &watch_->session() : nullptr, passed);
  graph_.ask(*this, processes);
}

Inquiry::~Inquiry() { graph_.remove(*this); }

int Inquiry::rank_of(ProcessNumber process) const {
  const auto& members = acquaintance_.members;
  const auto member = std::find(members.begin(), members.end(), process);
  return member == members.end() ? -1 : static_cast<int>(member - members.begin());
}

// --- Suspects -----------------------------------------------------------------------------------

Inquiry::Suspect Inquiry::suspect_of(ProcessNumber process) const {
  const int rank = rank_of(process);
  const bool has_heartbeat = rank >= 0 && acquaintance_.heartbeat;
  return {process, rank, has_heartbeat ? acquaintance_.heartbeat(rank) : std::nullopt,
          Deadline(kForAnAnswer, time_)};
}

void Inquiry::suspect(ProcessNumber process, RecycledVector<ProcessNumber>& fresh) {
  if (process == graph_.own_waits().number()) return;
  const auto known = std::find_if(suspects_.begin(), suspects_.end(),
                                  [&](const Suspect& one) { return one.process == process; });
  if (known != suspects_.end() && !known->neighbour) return;
  if (known != suspects_.end()) {  // it was asked, but what it said was of no interest
    *known = suspect_of(process);
  } else {
    suspects_.push_back(suspect_of(process));
  }
  fresh.push_back(process);
  ask_neighbours(rank_of(process), fresh);
}

void Inquiry::ask_neighbours(int rank, RecycledVector<ProcessNumber>& fresh) {
  if (rank < 0 || side_ != Wire::Side::collective || watch_ == nullptr || !watch_->layout()) return;
  const Layout& layout = *watch_->layout();
  if (layout.host_of(rank) == layout.host_of(watch_->rank())) return;
  for (const int other : layout.ranks_of(layout.host_of(rank))) {
    const ProcessNumber process = acquaintance_.members[static_cast<std::size_t>(other)];
    const auto known = [process](const Suspect& one) { return one.process == process; };
    if (std::any_of(suspects_.begin(), suspects_.end(), known)) continue;
    suspects_.push_back(suspect_of(process));
    suspects_.back().neighbour = true;
    fresh.push_back(process);
  }
}

bool Inquiry::is_alive(const Suspect& suspect) const {
  return suspect.heartbeat && acquaintance_.heartbeat(suspect.rank) != suspect.heartbeat;
}

RecycledVector<ProcessNumber> Inquiry::hear(const WaitGraph::Heard& heard) {
  const std::lock_guard lock(mutex_);
  RecycledVector<ProcessNumber> fresh;
  const auto who = std::find_if(suspects_.begin(), suspects_.end(),
                                [&](const Suspect& one) { return one.process == heard.from; });
  if (who == suspects_.end()) return fresh;
  who->answered = true;
  if (who->neighbour) return fresh;
  who->goes_on = heard.idle_later < timeout_;
  last_progress_ = std::max(last_progress_, time_.now() - heard.idle);
  leads_away_ = leads_away_ || heard.awaits_unknown;
  for (const ProcessNumber next : heard.awaited) {
    closed_ = closed_ || next == graph_.own_waits().number();
    suspect(next, fresh);
  }
  return fresh;
}

void Inquiry::cannot_ask(ProcessNumber process) {
  const std::lock_guard lock(mutex_);
  std::erase_if(suspects_, [&](const Suspect& one) {
    if (one.process != process) return false;
    leads_away_ = leads_away_ || !one.neighbour;
    return true;
  });
}

// --- Judgement ----------------------------------------------------------------------------------

std::vector<int> Inquiry::with_silent_hosts(const std::vector<int>& silent) const {
  std::vector<int> ranks = silent;
  if (side_ != Wire::Side::collective || watch_ == nullptr || !watch_->layout()) return ranks;
  const Layout& layout = *watch_->layout();
  for (const int rank : silent) {
    const int host = layout.host_of(rank);
    if (host == layout.host_of(watch_->rank())) continue;
    const bool answers = std::any_of(suspects_.begin(), suspects_.end(), [&](const Suspect& one) {
      return one.answered && one.rank >= 0 && layout.host_of(one.rank) == host;
    });
    if (answers) continue;
    const std::span<const int> there = layout.ranks_of(host);
    const RecycledVector<int> left = watch_->leavers(there);  // who need not answer
    std::copy_if(there.begin(), there.end(), std::back_inserter(ranks),
                 [&](int one) { return std::find(left.begin(), left.end(), one) == left.end(); });
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

/** Hosts that cannot be reached, if one of the silent is there; otherwise the silent. */
Verdict Inquiry::blame(const std::vector<int>& silent) const {
  Verdict verdict;
  if (watch_ != nullptr) verdict.loss = watch_->unreachable(silent);
  verdict.cut_off = !verdict.loss.ranks.empty();
  if (!verdict.cut_off) {
    verdict.loss = {with_silent_hosts(silent), "did not answer within " + seconds_text(timeout_)};
  }
  return verdict;
}

void Inquiry::ping_hosts_again() {
  if (!ping_ || !ping_->expired()) return;
  ping_.reset();
  watch_->ping_hosts();
}

void Inquiry::note_cut_off(std::span<const int> ranks) {
  RecycledVector<ProcessNumber> processes;
  for (const int rank : ranks) {
    processes.push_back(acquaintance_.members[static_cast<std::size_t>(rank)]);
  }
  graph_.note_cut_off(processes, timeout_);
}

std::optional<Verdict> Inquiry::verdict() {
  ping_hosts_again();
  RecycledVector<ProcessNumber> again;
  std::optional<Verdict> verdict;
  {
    const std::lock_guard lock(mutex_);
    verdict = judge(again);
  }
  if (watch_ != nullptr && !again.empty()) watch_->ping_hosts();
  // These take a lock that is held while an answer is heard.
  graph_.ask(*this, again);
  if (verdict && verdict->cut_off) note_cut_off(verdict->loss.ranks);
  return verdict;
}

std::optional<Verdict> Inquiry::judge(RecycledVector<ProcessNumber>& again) {
  bool patient = false;
  bool undecided = false;
  bool neighbours_open = false;
  bool all_answered = true;
  bool cannot_answer = false;  // one of this host that waits where it may not call MPI
  std::vector<int> silent;
  for (Suspect& suspect : suspects_) {
    const bool in_time = !suspect.deadline.expired();
    if (!suspect.neighbour) patient = patient || in_time;
    if (suspect.answered) continue;
    if (suspect.neighbour) {  // matters if none of its host answers
      neighbours_open = neighbours_open || in_time;
      continue;
    }
    undecided = undecided || in_time;
    all_answered = false;
    if (suspect.rank < 0) continue;
    if (is_alive(suspect)) {
      cannot_answer = true;
    } else {
      silent.push_back(suspect.rank);
    }
  }
  if (undecided) return std::nullopt;
  std::sort(silent.begin(), silent.end());
  // In a circle the first who knows of it gives up. Members would have told: who is silent has
  // stopped since it answered first.
  if (!all_answered && silent.empty() && asked_twice_ && closed_) {
    return judge_those_who_answered();
  }
  if (!silent.empty() && neighbours_open && with_silent_hosts(silent) != silent) {
    return std::nullopt;
  }
  if (!silent.empty()) return blame(silent);
  if (cannot_answer && time_.now() >= passed_ + timeout_ + kForOthers) {
    leads_away_ = true;
    return judge_those_who_answered();
  }
  if (!all_answered) return Verdict{};
  // Everybody is alive: what they do may still end the wait, so the full time is given once.
  if (patient && !asked_twice_) return std::nullopt;
  const auto idle =
      std::chrono::duration_cast<std::chrono::milliseconds>(time_.now() - last_progress_);
  if (idle < timeout_) return Verdict{{}, idle};
  if (!asked_twice_) {  // one may have stopped since its answer
    asked_twice_ = true;
    for (Suspect& suspect : suspects_) {
      again.push_back(suspect.process);
      const bool neighbour = suspect.neighbour;
      suspect = suspect_of(suspect.process);
      suspect.neighbour = neighbour;
      if (closed_) suspect.deadline = Deadline(kToAskAgain, time_);
    }
    return std::nullopt;
  }
  return judge_those_who_answered();
}

Verdict Inquiry::judge_those_who_answered() const {
  const std::string reason = "did not answer within " + seconds_text(timeout_);
  for (const Suspect& suspect : suspects_) {
    if (suspect.goes_on && suspect.rank >= 0) {
      return {{{suspect.rank}, reason + "; it makes other calls"}};
    }
  }
  if (!leads_away_) {
    return {{awaited_, reason + "; no rank has stopped, they wait for each other"}};
  }
  // Of whom nothing is known, it is not known either whether it gets on.
  const auto was_asked = [this](int rank) {
    return std::any_of(suspects_.begin(), suspects_.end(),
                       [rank](const Suspect& one) { return one.rank == rank; });
  };
  const bool all_asked = std::all_of(awaited_.begin(), awaited_.end(), was_asked);
  if (!all_asked || time_.now() < passed_ + timeout_ + kForOthers) return {};
  return {{awaited_,
           "did not answer within " +
               seconds_text(std::chrono::duration_cast<std::chrono::milliseconds>(
                   time_.now() - passed_ + timeout_)) +
               "; it waits in other communicators, for ranks that cannot be asked from here"}};
}

// --- Investigations -----------------------------------------------------------------------------

Investigation::Investigation(Acquaintance acquaintance, WaitGraph& graph, Watch* watch,
                             std::span<const int> awaited, std::chrono::milliseconds timeout)
    : acquaintance_(std::move(acquaintance)),
      graph_(graph),
      watch_(watch),
      awaited_(awaited.begin(), awaited.end()),
      timeout_(timeout),
      passed_(graph.time().now() + inquiry_lead(timeout)) {
  begin();
}

std::optional<Loss> Investigation::look() {
  auto verdict = inquiry_->verdict();
  if (!verdict) return std::nullopt;
  if (!verdict->loss.ranks.empty()) return std::move(verdict->loss);
  begin();
  return std::nullopt;
}

std::function<std::optional<Loss>()> WaitGraph::investigate(const Acquaintance& acquaintance,
                                                            std::span<const int> awaited,
                                                            std::chrono::milliseconds timeout) {
  return [investigation = std::make_shared<Investigation>(
              acquaintance, *this, nullptr, awaited, timeout)] { return investigation->look(); };
}

}  // namespace tutti
