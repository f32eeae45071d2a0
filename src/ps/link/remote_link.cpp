// A thread that sends and receives frames, and callers that wait for it.
#include "ps/link/remote_link.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <array>
#include <cerrno>
#include <new>
#include <utility>

#include "base/finally.hpp"
#include "base/text.hpp"
#include "base/thread.hpp"
#include "base/waiter.hpp"
#include "ps/link/control.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

constexpr std::int64_t kMostQueued = std::int64_t{256} << 20;
constexpr WaitPolicy kForNews{.nap = std::chrono::milliseconds(50)};

FileDescriptor new_event() {
  FileDescriptor event(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw SystemError("cannot make a descriptor for a link", errno);
  return event;
}

}  // namespace

RemoteLink::RemoteLink(mpi::Socket control, mpi::Socket data, Name server, RowFormat format,
                       std::chrono::milliseconds timeout)
    : LinkEnd(std::move(control), std::move(server), timeout),
      data_(std::move(data)),
      format_(std::move(format)),
      wake_(new_event()),
      thread_(start_thread("a link", [this] { run(); })) {}

RemoteLink::~RemoteLink() {
  leave();
  ends_ = true;
  ::eventfd_write(wake_.get(), 1);
  thread_.join();
}

Draft RemoteLink::draft(std::int64_t bytes) {
  if (bytes == 0) return {};
  std::unique_lock lock(mutex_);
  throw_if_lost();
  lock.unlock();
  const bool room = wait_until([this] { return queued_bytes_ <= kMostQueued; });
  lock.lock();
  if (!room) lose(late());
  throw_if_lost();
  try {
    PayloadMemory memory(bytes);
    const std::span<std::byte> payload = memory.bytes();
    drafts_.emplace(++last_draft_, std::move(memory));
    return {payload, last_draft_};
  } catch (const std::bad_alloc&) {
    throw SystemError("no memory for " + std::to_string(bytes) + " bytes to " + server_.text,
                      ENOMEM);
  }
}

void RemoteLink::discard(const Draft& draft) {
  const std::lock_guard lock(mutex_);
  drafts_.erase(draft.handle);
}

std::uint64_t RemoteLink::send(const RequestHeader& header, const Draft& draft) {
  std::unique_lock lock(mutex_);
  PayloadMemory payload;
  if (const auto found = drafts_.find(draft.handle); found != drafts_.end()) {
    payload = std::move(found->second);
    drafts_.erase(found);
  }
  shape_of(header, format_);  // refuses what makes no sense
  const std::uint64_t number = next_number(header, draft, lock);
  unanswered_.push_back(header);
  queued_.push_back({header, std::move(payload)});
  queued_bytes_ += header.payload_bytes;
  ::eventfd_write(wake_.get(), 1);
  return number;
}

template <class Done>
bool RemoteLink::wait_until(const Done& done) {
  Waiter waiter(kForNews, patience());
  while (true) {
    bool ended = false;
    {
      std::unique_lock lock(mutex_);
      if (done()) return true;
      throw_if_lost();
      const auto is_over = [&] { return done() || ended_; };
      // The last answers may be on their way yet when the other connection has ended.
      const bool alive = is_alive();
      if (!ended_ && !alive) news_.wait_for(lock, kForTheEnd, is_over);
      if (done()) return true;
      if (!alive) hear_control(ended_);
      ended = ended_.has_value();
    }
    if (ended) hear_end();
    if (waiter.expired()) return false;
    waiter.nap([&](Waiter::Duration limit) {
      std::unique_lock lock(mutex_);
      news_.wait_for(lock, limit, [&] { return done() || ended_; });
    });
  }
}

void RemoteLink::hear_end() {
  Waiter waiter(kForNews, kForTheEnd);
  while (is_alive() && !waiter.expired()) {
    waiter.nap([this](Waiter::Duration limit) {
      pollfd entry{control_.get(), POLLIN | POLLRDHUP, 0};
      ::poll(&entry, 1, static_cast<int>(limit / std::chrono::milliseconds(1)));
    });
  }
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  hear_control(ended_);
}

bool RemoteLink::wait_for_answer(std::uint64_t number) {
  return wait_until([this, number] { return came_count_ >= number; });
}

void RemoteLink::advance() {
  for (; !came_.empty(); came_.pop_front()) {
    replies_.put(++answered_, std::move(came_.front()));
  }
}

void RemoteLink::run() {
  mpi::send_at_once(data_);
  while (!ends_) {
    bool wants_to_send = outgoing_.has_value();
    if (!wants_to_send) {
      const std::lock_guard lock(mutex_);
      wants_to_send = !queued_.empty();
    }
    std::array<pollfd, 2> entries{
        pollfd{data_.get(), static_cast<short>(wants_to_send ? POLLIN | POLLOUT : POLLIN), 0},
        pollfd{wake_.get(), POLLIN, 0}};
    ::poll(entries.data(), entries.size(), -1);
    eventfd_t calls = 0;
    if (entries[1].revents != 0) ::eventfd_read(wake_.get(), &calls);
    try {
      std::optional<int> error = receive_answers();
      if (!error) error = send_queued();
      if (error) return end_with(reason_of(*error));
    } catch (const std::exception& fault) {
      return end_with(fault.what());
    }
  }
}

bool RemoteLink::start_next() {
  Queued next;
  {
    const std::lock_guard lock(mutex_);
    if (queued_.empty()) return false;
    next = std::move(queued_.front());
    queued_.pop_front();
    queued_bytes_ -= next.header.payload_bytes;
    news_.notify_all();
  }
  outgoing_.emplace(RequestFrame{next.header, 0}, shape_of(next.header, format_),
                    std::move(next.payload), format_.wire);
  return true;
}

std::optional<int> RemoteLink::send_queued() {
  std::int64_t budget = kMostInATurn;
  const Finally count([&] { bytes_sent_ += kMostInATurn - budget; });
  while (budget > 0 && (outgoing_ || start_next())) {
    int error = 0;
    const Moved moved = outgoing_->send(data_, budget, error);
    if (moved == Moved::ended) return error;
    if (moved == Moved::some) break;
    outgoing_.reset();
  }
  return std::nullopt;
}

std::optional<int> RemoteLink::receive_answers() {
  std::int64_t budget = kMostInATurn;
  const Finally count([&] { bytes_received_ += kMostInATurn - budget; });
  const auto shape = [this](const ReplyFrame& frame) {
    const std::lock_guard lock(mutex_);
    if (unanswered_.empty()) throw CorruptMessage("an answer to nothing");
    return shape_of(frame.header, unanswered_.front(), format_);
  };
  while (true) {
    int error = 0;
    const Moved moved = reader_.receive(data_, budget, error, format_.wire, shape);
    if (moved == Moved::ended) return error;
    if (moved == Moved::some) return std::nullopt;
    Reply reply{reader_.head().header, {}};
    const PayloadMemory payload = reader_.take();
    reply.payload.assign(payload.bytes().begin(), payload.bytes().end());
    const std::lock_guard lock(mutex_);
    unanswered_.pop_front();
    came_.push_back(std::move(reply));
    ++came_count_;
    news_.notify_all();
  }
}

void RemoteLink::end_with(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  ended_ = reason;
  news_.notify_all();
}

}  // namespace tutti::ps
