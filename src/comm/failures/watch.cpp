// Spreads the news of a loss, and of who has left.
#include "comm/failures/watch.hpp"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "base/deadline.hpp"
#include "base/log.hpp"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kBetweenPolls{1};
constexpr std::chrono::milliseconds kForTheNews{250};
constexpr std::chrono::milliseconds kLookInterval{20};  // at connections to other hosts

}  // namespace

Watch::Watch(ControlNetwork& session, const std::vector<int>& members, int rank, int tag,
             std::chrono::milliseconds timeout)
    : session_(session),
      members_(members),
      rank_(rank),
      timeout_(timeout),
      counts_(members.size()),
      messenger_(session.messenger(tag)),
      departures_(rank, static_cast<int>(members.size())) {}

void Watch::set_hosts(const Layout& layout, std::unique_ptr<Heartbeats> heartbeats) {
  const std::lock_guard lock(mutex_);
  layout_ = layout;
  departures_.set_hosts(layout);
  heartbeats_ = std::move(heartbeats);
}

int Watch::rank_of(int session_rank) const {
  const auto member = std::find(members_.begin(), members_.end(), session_rank);
  return member == members_.end() ? -1 : static_cast<int>(member - members_.begin());
}

Acquaintance Watch::acquaintance() const {
  return {wait_graph().numbers_of(session_, members_), heartbeat_};
}

// --- Waiting ------------------------------------------------------------------------------------

void Watch::poll(std::span<const int> waiting_for) {
  {
    const std::lock_guard lock(mutex_);
    throw_failure();
    if (!session_.may_call()) return;
    const auto now = time().now();
    if (now - last_poll_ >= kBetweenPolls) {
      last_poll_ = now;
      messenger_->flush();
      receive();
      look_after_hosts(now);
      throw_failure();
    }
  }
  wait_graph().poll(session_, waiting_for, members_);
}

void Watch::look_after_hosts(Clock::time_point now) {
  if (failure_ || !heartbeats_ || now - last_look_ < kLookInterval) return;
  last_look_ = now;
  const auto found = look_at_heartbeats();
  if (!found) return;
  if (found->by_another) {
    pass_on(found->failure);
  } else {
    announce(found->failure, Herald::finder);
  }
}

std::optional<Heartbeats::Found> Watch::look_at_heartbeats() {
  const auto found = heartbeats_->look([this](int rank) { return departures_.has_left(rank); });
  note_ended(heartbeats_->ended());
  return found;
}

void Watch::note_ended(std::span<const int> ranks) {
  for (const int rank : ranks) session_.note_ended(members_[static_cast<std::size_t>(rank)]);
}

void Watch::throw_failure() const {
  if (failure_) failure_->raise();
}

// --- The other hosts ----------------------------------------------------------------------------

void Watch::ping_hosts() {
  const std::lock_guard lock(mutex_);
  if (heartbeats_) heartbeats_->ping();
}

Loss Watch::unreachable(std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  if (!heartbeats_) return {};
  const std::vector<int> hosts = heartbeats_->unreachable();
  const bool one_is_there = std::any_of(ranks.begin(), ranks.end(), [&](int rank) {
    return std::find(hosts.begin(), hosts.end(), layout_->host_of(rank)) != hosts.end();
  });
  return one_is_there ? loss_of_hosts(*layout_, hosts) : Loss();
}

// --- Messages -----------------------------------------------------------------------------------

void Watch::receive() {
  messenger_->receive(
      [this](const ControlMessage& message, int source) { handle(message, rank_of(source)); });
}

void Watch::handle(const ControlMessage& message, int source) {
  if (const auto* report = std::get_if<FailureReport>(&message)) {
    if (!failure_) fail(*report);
  } else if (const auto* departure = std::get_if<Departure>(&message)) {
    departures_.hear(source, *departure);
  } else if (std::holds_alternative<Enquiry>(message)) {
    if (departures_.hear_enquiry(source)) tell_departure(source);
  } else if (const auto* headcount = std::get_if<Headcount>(&message)) {
    departures_.hear(source, *headcount);
  }
}

void Watch::send_to_all(const FailureReport& report, std::span<const int> except) {
  for (const int member : members_) {
    const bool is_meant = std::find(except.begin(), except.end(), rank_of(member)) == except.end();
    if (is_meant && member != session_.rank()) messenger_->send(report, member);
  }
}

// --- Leaving ------------------------------------------------------------------------------------

void Watch::leave() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (heartbeats_) look_at_heartbeats();  // who has ended since is not to be told
    heartbeats_.reset();
    if (failure_ || !session_.may_call()) return;
    for (const int rank : departures_.leave(counts_)) tell_departure(rank);
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

bool Watch::has_left(int rank) {
  const std::lock_guard lock(mutex_);
  return departures_.has_left(rank);
}

void Watch::tell_departure(int rank) {
  messenger_->send(Departure{counts_.sent_to(rank)}, members_[static_cast<std::size_t>(rank)]);
}

void Watch::enquire(std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  if (failure_ || !session_.may_call()) return;
  for (const int rank : ranks) {
    if (departures_.ask(rank)) {
      messenger_->send(Enquiry{}, members_[static_cast<std::size_t>(rank)]);
    }
  }
}

bool Watch::all_have_left() noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (failure_ || !session_.may_call()) return true;
    messenger_->flush();
    receive();
    while (const auto word = departures_.next_word()) {
      for (const int rank : word->receivers) {
        messenger_->send(word->headcount, members_[static_cast<std::size_t>(rank)]);
      }
    }
    const bool has_sent_all = !messenger_->is_sending([](int) { return true; });
    return wait_graph().drain(session_) && departures_.all_have_left() && has_sent_all;
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
    session_.keep();
    return true;
  }
}

RecycledVector<int> Watch::leavers(std::span<const int> ranks) {
  const std::lock_guard lock(mutex_);
  RecycledVector<int> found;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(found),
               [&](int rank) { return departures_.has_left(rank); });
  return found;
}

RecycledVector<int> Watch::leavers(std::span<const int> ranks, Wire::Side side) {
  const std::lock_guard lock(mutex_);
  const auto has_all = [this](int rank, const MessageCounts::Sent& sent, Wire::Side of) {
    return counts_.has_all(rank, sent, static_cast<std::size_t>(of));
  };
  RecycledVector<int> found;
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(found), [&](int rank) {
    const MessageCounts::Sent* const sent = departures_.sent_by(rank);
    if (sent == nullptr || !has_all(rank, *sent, side)) return false;
    // Who receives may send as well, and wait for replies.
    return side != Wire::Side::recv || has_all(rank, *sent, Wire::Side::send);
  });
  return found;
}

// --- Failures -----------------------------------------------------------------------------------

void Watch::announce_lost(std::span<const int> ranks, std::string_view reason, Herald herald,
                          Ended ended) noexcept {
  FailureReport report{};
  report.set_lost(ranks, reason, ended);
  try {
    const std::lock_guard lock(mutex_);
    announce(report, herald);
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void Watch::announce_mismatch(std::string_view text, Herald herald) noexcept {
  FailureReport report{};
  report.set_mismatch(text);
  try {
    const std::lock_guard lock(mutex_);
    announce(report, herald);
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void Watch::note_mismatch(std::string_view text) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_.emplace().set_mismatch(text);
    is_noted_ = true;
    session_.keep();
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

/** The first failure that is known here. */
void Watch::fail(const FailureReport& report) {
  failure_ = report;
  is_noted_ = false;
  if (report.kind == FailureReport::Kind::mismatch) {
    session_.keep();
  } else {
    session_.fail();
    if (report.ended == Ended::yes) note_ended(report.rank_list());
  }
  if (heartbeats_) heartbeats_->tell(report);
}

/** Who found it tells everybody; those next to this rank hear it even if that one ends before. */
void Watch::pass_on(const FailureReport& report) {
  fail(report);
  for (const int rank : layout_->ranks_of(layout_->host_of(rank_))) {
    if (rank != rank_) messenger_->send(report, members_[static_cast<std::size_t>(rank)]);
  }
}

void Watch::announce(const FailureReport& found, Herald herald) {
  // Another thread of the rank that finds a failure may have noted it before this one tells of it.
  if (failure_ && !(is_noted_ && found.kind == failure_->kind)) return;
  const FailureReport report = failure_.value_or(found);
  if (heartbeats_) look_at_heartbeats();  // who has ended since is not to be told
  fail(report);
  if (herald == Herald::nobody || !session_.may_call()) return;
  if (!session_.this_thread_may_call()) {  // another thread's call under way tells
    is_noted_ = true;
    return;
  }
  const auto lost = report.rank_list();
  const bool stands_in = herald == Herald::stand_in;
  // Who is lost, and may come late, hears of the finder.
  send_to_all(report, stands_in ? std::span<const int>(lost) : std::span<const int>());
  if (stands_in && report.kind != FailureReport::Kind::mismatch) return;
  // Nobody may call MPI after this, and a message to a new peer needs calls to get out. The ranks
  // of this host hear through shared memory.
  const auto is_urgent = [&](int member) {
    const int rank = rank_of(member);
    const bool is_near = layout_ && layout_->host_of(rank) == layout_->host_of(rank_);
    return !is_near && std::find(lost.begin(), lost.end(), rank) == lost.end();
  };
  for (Deadline deadline(kForTheNews, time()); !deadline.expired(); time().sleep(kBetweenPolls)) {
    messenger_->flush();
    if (!messenger_->is_sending(is_urgent)) break;
  }
}

}  // namespace tutti
