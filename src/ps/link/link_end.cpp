// Waits, and losses that stay.
#include "ps/link/link_end.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "ps/link/control.hpp"

namespace tutti::ps {

LinkEnd::LinkEnd(mpi::Socket control, Name server, std::chrono::milliseconds timeout)
    : control_(std::move(control)), server_(std::move(server)), timeout_(timeout) {}

LinkEnd::~LinkEnd() { leave(); }

void LinkEnd::leave() noexcept {
  if (!stopped_ && !has_left_) ps::send(control_, ControlByte::left);
  has_left_ = true;
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
  const ControlNews news = receive(control_);
  if (news.told) lose("it serves this worker no longer");
  if (news.error) lose(reason_of(*news.error));
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
