// Publishes requests in shared memory, and waits for answers there.
#include "ps/link/host_link.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <span>
#include <utility>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

using std::chrono_literals::operator""us;
using std::chrono_literals::operator""ms;

constexpr WaitPolicy kForAnAnswer{
    .first_looks = 100, .spin = 20us, .between = &shm::relax, .nap = 50ms};

}  // namespace

HostLink::HostLink(mpi::Socket socket, Name server, std::unique_ptr<BlockHeap> requests,
                   std::shared_ptr<shm::Mapping> answers, std::chrono::milliseconds timeout)
    : socket_(std::move(socket)),
      server_(std::move(server)),
      timeout_(timeout),
      heap_(std::move(requests)),
      mapping_(std::move(answers)),
      requests_(reinterpret_cast<RequestArea*>(heap_->base())),
      answers_(reinterpret_cast<AnswerArea*>(mapping_->base())) {}

HostLink::~HostLink() {
  if (!stopped_) requests_->left.store(1, std::memory_order_release);
}

Draft HostLink::draft(std::int64_t bytes) {
  if (bytes == 0) return {};
  for (;;) {
    std::uint64_t oldest = 0;
    {
      const std::lock_guard lock(mutex_);
      throw_if_lost();
      advance();
      try {
        const std::int64_t block = heap_->take(bytes);
        return {heap_->memory_of(block, bytes), block};
      } catch (const SystemError&) {
        if (taken_ == sent_) throw;  // nothing will be free
        oldest = taken_ + 1;
      }
    }
    if (!wait_for_answer(oldest)) {
      throw SystemError("no shared memory for " + std::to_string(bytes) + " bytes to " +
                            server_.text + " has become free within " + seconds_text(timeout_),
                        ENOMEM);
    }
  }
}

std::uint64_t HostLink::send(const RequestHeader& header, const Draft& draft) {
  std::unique_lock lock(mutex_);
  throw_if_lost();
  for (advance(); sent_ - taken_ == kMostUnanswered; advance()) {
    const std::uint64_t oldest = taken_ + 1;
    lock.unlock();
    const bool answered = wait_for_answer(oldest);
    lock.lock();
    if (!answered) lose("it did not answer within " + seconds_text(timeout_));
    throw_if_lost();
  }
  const std::uint64_t number = ++sent_;
  RequestSlot& slot = slot_of(requests_->slots, number);
  slot.header = header;
  slot.offset = draft.handle == 0 ? 0 : heap_->offset_of(draft.handle);
  slot_of(in_flight_, number) = draft.handle;
  stopped_ = stopped_ || header.kind == RequestKind::stop;
  // In one order with the server's: it sees the request, or this that it sleeps.
  slot.number.store(number, std::memory_order_seq_cst);
  if (answers_->sleeping.load(std::memory_order_seq_cst) != 0 &&
      answers_->sleeping.exchange(0, std::memory_order_seq_cst) != 0) {
    const std::byte bell{};
    mpi::send_all(socket_, std::span(&bell, 1));
  }
  return number;
}

std::uint64_t HostLink::answered() {
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  advance();
  return taken_;
}

Reply HostLink::wait(std::uint64_t number) {
  {
    const std::lock_guard lock(mutex_);
    throw_if_lost();
    if (number == 0 || number > sent_) refuse("request ", number, " has not been sent");
  }
  const bool answered = wait_for_answer(number);
  const std::lock_guard lock(mutex_);
  if (!answered) lose("it did not answer within " + seconds_text(timeout_));
  advance();
  std::optional<Reply> reply = replies_.take(number);
  if (!reply) refuse("request ", number, " has been asked for before");
  return std::move(*reply);
}

void HostLink::forget(std::uint64_t number) {
  const std::lock_guard lock(mutex_);
  replies_.forget(number);
}

Reply HostLink::refusal() {
  const std::lock_guard lock(mutex_);
  advance();
  return replies_.refusal();
}

void HostLink::check() {
  // The server sends nothing: what there is to read is the end.
  pollfd entry{socket_.get(), POLLIN | POLLRDHUP, 0};
  const bool ended = ::poll(&entry, 1, 0) > 0;
  const bool told = answers_->ended.load(std::memory_order_acquire) != 0;
  if (!ended && !told && !is_lost_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(mutex_);
  throw_if_lost();
  lose(told ? "it serves this worker no longer" : "its process has ended");
}

bool HostLink::wait_for_answer(std::uint64_t number) {
  const auto done = [&] { return has_answered(number); };
  Waiter waiter(kForAnAnswer, timeout_ + kGraceOfServer);
  if (waiter.spin(done)) return true;
  const shm::Signal answers = answers_->answered.signal();
  while (true) {
    const std::uint32_t seen = answers.value();
    if (done()) return true;
    try {
      check();
    } catch (const PeerLost&) {
      if (done()) return true;  // its last answer
      throw;
    }
    if (waiter.expired()) return false;
    waiter.nap([&](Waiter::Duration limit) { answers.sleep(seen, limit); });
  }
}

void HostLink::advance() {
  bool read = false;
  while (taken_ < sent_ && has_answered(taken_ + 1)) {
    const std::uint64_t number = taken_ + 1;
    const AnswerSlot& slot = slot_of(answers_->slots, number);
    Reply reply{slot.header, {}};
    if (reply.header.payload_bytes > 0) {
      const std::byte* const payload = mapping_->base() + slot.offset;
      reply.payload.assign(payload, payload + reply.header.payload_bytes);
      read = true;
    }
    if (std::int64_t& block = slot_of(in_flight_, number); block != 0) {
      heap_->give(std::exchange(block, 0));
    }
    taken_ = number;
    replies_.put(number, std::move(reply));
  }
  if (read) requests_->taken.store(taken_, std::memory_order_release);
}

void HostLink::throw_if_lost() {
  if (lost_) throw PeerLost({server_.rank}, server_.text + ": " + *lost_);
}

void HostLink::lose(const std::string& reason) {
  if (!lost_) {
    lost_ = reason;
    is_lost_.store(true, std::memory_order_release);
    requests_->left.store(1, std::memory_order_release);
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  throw PeerLost({server_.rank}, server_.text + ": " + *lost_);
}

}  // namespace tutti::ps
