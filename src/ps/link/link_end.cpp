// Waits, and losses that stay.
#include "ps/link/link_end.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <span>
#include <utility>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"

namespace tutti::ps {

namespace {

constexpr WaitPolicy kForASign{.nap = std::chrono::milliseconds(50)};

}  // namespace

LinkEnd::LinkEnd(mpi::Socket control, Name server, std::chrono::milliseconds timeout)
    : control_(std::move(control)), server_(std::move(server)), timeout_(timeout) {}

LinkEnd::~LinkEnd() { leave(); }

void LinkEnd::leave() noexcept {
  if (!stopped_ && !has_left_) mpi::send_all(control_, std::as_bytes(std::span(farewell_)));
  has_left_ = true;
}

void LinkEnd::set_reason(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  farewell_.resize(1);
  farewell_ += reason.substr(0, whole_characters(reason, kMostReason));
}

Reply LinkEnd::wait(std::uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    throw_if_lost();
    if (number == 0 || number > sent_) refuse("request ", number, " has not been sent");
  }
  const bool answered = wait_for_answer(number);
  const std::lock_guard lock(mutex_);
  if (!answered) lose(late());
  advance();
  std::optional<Reply> reply = replies_.take(number);
  if (!reply) refuse("request ", number, " has been asked for before");
  return std::move(*reply);
}

void LinkEnd::forget(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  replies_.forget(number);
}

Reply LinkEnd::refusal() {
  const std::lock_guard lock(mutex_);
  advance();
  return replies_.refusal();
}

bool LinkEnd::has_room(std::int64_t requests) {
  const std::lock_guard lock(mutex_);
  advance();
  return sent_ - answered_ + static_cast<std::uint64_t>(requests) <= kMostUnanswered;
}

std::uint64_t LinkEnd::answered() {
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  advance();
  return answered_;
}

bool LinkEnd::is_alive() const {
  pollfd entry{control_.get(), POLLIN | POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) <= 0;
}

void LinkEnd::check() {
  if (is_alive() && !is_lost_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  hear_control();
}

void LinkEnd::hear_control(const std::optional<std::string>& ended) {
  const ControlNews news = receive(control_);
  is_present_ = is_present_ || news.here;
  if (news.late) {
    lose("it has given this worker up, for which others had waited until their deadline");
  }
  if (news.told) lose("it serves this worker no longer");
  if (ended) lose(*ended);
  if (news.error) lose(reason_of(*news.error));
}

void LinkEnd::ask_presence() {
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  is_present_ = false;
  ps::send(control_, ControlByte::ask);
}

void LinkEnd::await_presence(std::chrono::milliseconds waited) {
  Waiter waiter(kForASign, std::max(patience() - waited, kGraceOfServer));
  while (true) {
    {
      const std::lock_guard lock(mutex_);
      throw_if_lost();
      hear_control();
      if (is_present_) return;
      if (waiter.expired()) lose(late());
    }
    waiter.nap([&](Waiter::Duration limit) {
      pollfd entry{control_.get(), POLLIN | POLLRDHUP, 0};
      ::poll(&entry, 1, static_cast<int>(limit / std::chrono::milliseconds(1)));
    });
  }
}

void LinkEnd::throw_if_lost() {
  if (lost_) throw PeerLost({server_.rank}, server_.text + ": " + *lost_);
}

void LinkEnd::lose(const std::string& reason) {
  if (!lost_) {
    lost_ = reason;
    is_lost_.store(true, std::memory_order_release);
    leave();
    ::shutdown(control_.get(), SHUT_RDWR);
  }
  throw PeerLost({server_.rank}, server_.text + ": " + *lost_);
}

std::uint64_t LinkEnd::next_number(const RequestHeader& header, const Draft& draft,
                                   std::unique_lock<std::mutex>& lock) {
  throw_if_lost();
  if (header.payload_bytes < 0 || header.payload_bytes > std::ssize(draft.payload)) {
    refuse("payload_bytes is ", header.payload_bytes, ", but the draft has ", draft.payload.size());
  }
  for (advance(); sent_ - answered_ == kMostUnanswered; advance()) {
    const std::uint64_t oldest = answered_ + 1;
    lock.unlock();
    const bool answered = wait_for_answer(oldest);
    lock.lock();
    if (!answered) lose(late());
    throw_if_lost();
  }
  stopped_ = stopped_ || header.kind == RequestKind::stop;
  return ++sent_;
}

std::string LinkEnd::late() const { return "it did not answer within " + seconds_text(timeout_); }

}  // namespace tutti::ps
