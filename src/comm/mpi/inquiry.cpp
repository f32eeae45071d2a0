// Finds out who keeps a rank waiting.
#include <algorithm>

#include "base/text.hpp"
#include "comm/mpi/watch.hpp"

namespace tutti::mpi {
namespace {

// Ranks that wait look for messages once a millisecond, inside a host every 50 ms: if they get a
// core, of which a busy machine has few.
constexpr std::chrono::milliseconds kForAnAnswer{1300};
// Late enough for the other hosts' kernels to have acknowledged the leader's byte.
constexpr std::chrono::milliseconds kToAskAgain{350};

}  // namespace

Watch::Inquiry::Inquiry(Watch& watch, std::span<const int> awaited,
                        std::chrono::milliseconds timeout, Clock::time_point first_passed)
    : watch_(watch),
      awaited_(awaited.begin(), awaited.end()),
      timeout_(timeout),
      first_passed_(first_passed),
      last_progress_(Clock::now() - timeout) {
  const std::lock_guard lock(watch_.mutex_);
  number_ = ++watch_.last_number_;
  for (const int rank : awaited_) ask(rank);
  watch_.inquiries_.push_back(this);
  if (watch_.heartbeats_) {
    watch_.heartbeats_->ping();
  } else if (watch_.layout_) {
    watch_.send(question(), watch_.leader_of_host());
    later_.emplace(kToAskAgain);
  }
}

Watch::Inquiry::~Inquiry() {
  const std::lock_guard lock(watch_.mutex_);
  std::erase(watch_.inquiries_, this);
}

void Watch::Inquiry::ask(int rank) {
  const auto known = [rank](const Suspect& suspect) { return suspect.rank == rank; };
  if (rank == watch_.rank_ || std::any_of(suspects_.begin(), suspects_.end(), known)) return;
  watch_.send(question(), rank);
  suspects_.push_back({rank, Deadline(kForAnAnswer)});
}

Question Watch::Inquiry::question() const {
  const auto overdue =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - first_passed_);
  return {number_, overdue.count()};
}

void Watch::Inquiry::hear(int rank, const Answer& answer) {
  const auto entries = std::span(answer.entries);
  const auto ranks = entries.first(static_cast<std::size_t>(answer.rank_count));
  const auto hosts = entries.subspan(ranks.size(), static_cast<std::size_t>(answer.host_count));
  if (later_ && rank == watch_.leader_of_host()) told_.assign(hosts.begin(), hosts.end());
  const auto suspect = std::find_if(suspects_.begin(), suspects_.end(),
                                    [rank](const Suspect& one) { return one.rank == rank; });
  if (suspect == suspects_.end()) return;
  suspect->answered = true;
  suspect->goes_on = answer.idle_later < timeout_.count();
  last_progress_ = std::max(last_progress_, Clock::now() - std::chrono::milliseconds(answer.idle));
  for (const int next : ranks) ask(next);
}

std::vector<int> Watch::Inquiry::unreachable() const {
  return watch_.heartbeats_ ? watch_.heartbeats_->unreachable() : told_;
}

/** Hosts that cannot be reached, if one of the silent is there; otherwise the silent. */
Loss Watch::Inquiry::blame(std::vector<int> silent) const {
  const std::vector<int> hosts = unreachable();
  const auto is_there = [&](int rank) {
    return std::find(hosts.begin(), hosts.end(), watch_.layout_->host_of(rank)) != hosts.end();
  };
  if (!hosts.empty() && std::any_of(silent.begin(), silent.end(), is_there)) {
    return loss_of_hosts(*watch_.layout_, hosts);
  }
  return {std::move(silent), "did not answer within " + seconds_text(timeout_)};
}

std::optional<Watch::Verdict> Watch::Inquiry::verdict() {
  const std::lock_guard lock(watch_.mutex_);
  if (later_ && later_->expired()) {
    watch_.send(question(), watch_.leader_of_host());
    later_.emplace(timeout_ + kForAnAnswer);  // once is enough
  }
  bool patient = false;
  bool undecided = false;
  std::vector<int> silent;
  for (Suspect& suspect : suspects_) {
    const bool in_time = !suspect.patience.expired();
    patient = patient || in_time;
    if (suspect.answered) continue;
    undecided = undecided || in_time;
    silent.push_back(suspect.rank);
  }
  if (undecided) return std::nullopt;
  if (!silent.empty()) return Verdict{blame(std::move(silent))};
  // Everybody is alive: what they do may still end the wait, so the full time is given once.
  if (patient && !asked_twice_) return std::nullopt;
  const auto idle =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - last_progress_);
  if (idle < timeout_) return Verdict{{}, idle};
  if (!asked_twice_) {  // one may have stopped since its answer
    asked_twice_ = true;
    for (Suspect& suspect : suspects_) {
      watch_.send(question(), suspect.rank);
      suspect = {suspect.rank, Deadline(kForAnAnswer)};
    }
    return std::nullopt;
  }
  const std::string reason = "did not answer within " + seconds_text(timeout_);
  const auto busy = std::find_if(suspects_.begin(), suspects_.end(),
                                 [](const Suspect& suspect) { return suspect.goes_on; });
  if (busy != suspects_.end()) return Verdict{{{busy->rank}, reason + "; it makes other calls"}};
  return Verdict{{awaited_, reason + "; no rank has stopped, they wait for each other"}};
}

}  // namespace tutti::mpi
