// Publishes requests in shared memory, and waits for answers there.
#include "ps/link/host_link.hpp"

#include <cstddef>
#include <span>
#include <utility>

#include "base/waiter.hpp"
#include "ps/link/control.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

/** A server that looks at its links answers within the first looks. */
constexpr WaitPolicy kForAnAnswer{.first_looks = 1000,
                                  .spin = std::chrono::microseconds(60),
                                  .between = &offer_core,
                                  .nap = std::chrono::milliseconds(50)};
/** One that slept may have been woken on this core, and waits for it; it has woken up before this
 * ends. */
constexpr WaitPolicy kForOneThatSlept{
    .spin = kForAnAnswer.spin, .between = kForAnAnswer.between, .nap = kForAnAnswer.nap};

}  // namespace

HostLink::HostLink(mpi::Socket control, Name server, std::unique_ptr<BlockHeap> requests,
                   std::shared_ptr<shm::Mapping> answers, std::chrono::milliseconds timeout)
    : LinkEnd(std::move(control), std::move(server), timeout),
      heap_(std::move(requests)),
      mapping_(std::move(answers)),
      requests_(reinterpret_cast<RequestArea*>(heap_->base())),
      answers_(reinterpret_cast<AnswerArea*>(mapping_->base())) {}

Draft HostLink::draft(std::int64_t bytes) {
  if (bytes == 0) return {};
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      throw_if_lost();
      advance();
      try {
        const std::int64_t block = heap_->take(bytes);
        return {heap_->memory_of(block, bytes), block};
      } catch (const SystemError&) {
        if (answered_ == sent_ || bytes > heap_->most()) throw;  // nothing will be free
      }
    }
    wait(send({.kind = RequestKind::answer_all}, {}));
  }
}

void HostLink::discard(const Draft& draft) {
  if (draft.handle == 0) return;
  const std::lock_guard lock(mutex_);
  heap_->give(draft.handle);
}

std::uint64_t HostLink::send(const RequestHeader& header, const Draft& draft) {
  std::unique_lock lock(mutex_);
  std::uint64_t number = 0;
  try {
    number = next_number(header, draft, lock);
  } catch (...) {
    if (!lock.owns_lock()) lock.lock();
    if (draft.handle != 0 && !draft.stays) heap_->give(draft.handle);
    throw;
  }
  RequestSlot& slot = slot_of(requests_->slots, number);
  slot.header = header;
  slot.offset = draft.handle == 0 ? 0 : heap_->offset_of(draft.handle);
  slot_of(in_flight_, number) = draft.stays ? 0 : draft.handle;
  // In one order with the server's: it sees the request, or this that it sleeps.
  slot.number.store(number, std::memory_order_seq_cst);
  wake_server();
  return number;
}

void HostLink::announce() {
  if (answers_->sleeping.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  wake_server();
}

void HostLink::wake_server() {
  if (answers_->sleeping.load(std::memory_order_seq_cst) == 0 ||
      answers_->sleeping.exchange(0, std::memory_order_seq_cst) == 0) {
    return;
  }
  has_rung_.store(true, std::memory_order_relaxed);
  if (!doorbell_) doorbell_ = open_doorbell(answers_->doorbell);
  if (*doorbell_) {
    ring(*doorbell_);
  } else {
    ps::send(control_, ControlByte::wake);
  }
}

bool HostLink::wait_for_answer(std::uint64_t number) {
  const auto done = [&] { return has_answered(number); };
  const bool slept = has_rung_.exchange(false, std::memory_order_relaxed);
  Waiter waiter(slept ? kForOneThatSlept : kForAnAnswer, patience());
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
  while (answered_ < sent_ && has_answered(answered_ + 1)) {
    const std::uint64_t number = answered_ + 1;
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
    answered_ = number;
    replies_.put(number, std::move(reply));
  }
  if (read) requests_->taken.store(answered_, std::memory_order_release);
}

}  // namespace tutti::ps
