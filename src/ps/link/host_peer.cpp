// Takes requests from shared memory, and answers there.
#include "ps/link/host_peer.hpp"

#include "base/memory.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {

HostPeer::HostPeer(mpi::Socket control, int worker, std::shared_ptr<shm::Mapping> requests,
                   std::unique_ptr<BlockHeap> answers)
    : Peer(std::move(control), worker),
      requests_(std::move(requests)),
      heap_(std::move(answers)),
      asked_(reinterpret_cast<RequestArea*>(requests_->base())),
      answers_(reinterpret_cast<AnswerArea*>(heap_->base())) {}

void HostPeer::set_sleeping(bool sleeping) {
  answers_->sleeping.store(sleeping ? 1 : 0, std::memory_order_seq_cst);
}

std::optional<Request> HostPeer::take_request() {
  const RequestSlot& slot = slot_of(asked_->slots, handed_out_ + 1);
  // In one order with set_sleeping(): either this sees the request, or the worker that it sleeps.
  if (slot.number.load(std::memory_order_seq_cst) != handed_out_ + 1) return std::nullopt;
  Request request{worker(), handed_out_ + 1, slot.header, {}};
  const std::int64_t offset = slot.offset;
  const std::int64_t bytes = request.header.payload_bytes;
  if (!is_request(request.header) || offset < 0 || offset > requests_->bytes() - bytes) {
    give_up("it has sent what is no request");
    return std::nullopt;
  }
  request.payload = {requests_->base() + offset, static_cast<std::size_t>(bytes)};
  ++handed_out_;
  return request;
}

std::int64_t HostPeer::place(std::span<const std::byte> payload) {
  const std::uint64_t taken = asked_->taken.load(std::memory_order_acquire);
  for (; !replies_.empty() && replies_.front().first <= taken; replies_.pop_front()) {
    heap_->give(replies_.front().second);
  }
  if (payload.empty()) return 0;
  const std::int64_t block = heap_->take(std::ssize(payload));
  replies_.emplace_back(answered_ + 1, block);
  copy_bytes(heap_->memory_of(block, std::ssize(payload)).data(), payload.data(),
             std::ssize(payload));
  return heap_->offset_of(block);
}

void HostPeer::send_answer(const Request& /*request*/, const ReplyHeader& header,
                           std::span<const std::byte> payload) {
  AnswerSlot& slot = slot_of(answers_->slots, answered_ + 1);
  slot.header = header;
  slot.header.payload_bytes = std::ssize(payload);
  try {
    slot.offset = place(payload);
  } catch (const SystemError&) {  // the worker hears of it
    slot.header = {Outcome::no_memory, -1, 0};
  }
  ++answered_;
  slot.number.store(answered_, std::memory_order_release);
  answers_->answered.publish(static_cast<std::uint32_t>(answered_));
}

}  // namespace tutti::ps
