// Reads requests and writes answers on a socket that never blocks.
#include "ps/link/remote_peer.hpp"

#include <sys/epoll.h>

#include <new>
#include <utility>

#include "base/memory.hpp"

namespace tutti::ps {
namespace {

/** So many bytes may wait on either side before no more requests are read. */
constexpr std::int64_t kMostWaiting = std::int64_t{64} << 20;

}  // namespace

RemotePeer::RemotePeer(mpi::Socket control, mpi::Socket data, int worker, RowFormat format)
    : Peer(std::move(control), worker), data_(std::move(data)), format_(std::move(format)) {
  mpi::send_at_once(data_);
}

bool RemotePeer::reads() const { return waiting_ < kMostWaiting && answer_bytes_ < kMostWaiting; }

std::uint32_t RemotePeer::data_events() const {
  const std::uint32_t reading = reads() ? EPOLLIN : 0U;
  const std::uint32_t writing = answers_.empty() ? 0U : EPOLLOUT;
  return reading | writing;
}

std::optional<Request> RemotePeer::take_request() {
  if (handed_out_ == held_.size()) return std::nullopt;
  const Held& held = held_[handed_out_++];
  waiting_ -= held.header.payload_bytes;
  return Request{worker(), answered_ + handed_out_, held.header, held.payload.bytes()};
}

void RemotePeer::send_answer(const Request& /*request*/, const ReplyHeader& header,
                             std::span<const std::byte> payload) {
  ReplyFrame frame{header, 0};
  frame.header.payload_bytes = std::ssize(payload);
  PayloadMemory copy;
  try {
    copy = PayloadMemory(std::ssize(payload));
    copy_bytes(copy.bytes().data(), payload.data(), std::ssize(payload));
  } catch (const std::bad_alloc&) {  // the worker hears of it
    frame.header = {Outcome::no_memory, -1, 0};
  }
  const PayloadShape shape = shape_of(frame.header, held_.front().header, format_);
  answer_bytes_ += frame.header.payload_bytes;
  answers_.emplace_back(frame, shape, std::move(copy), format_.wire);
  held_.pop_front();
  --handed_out_;
  ++answered_;
  std::int64_t budget = INT64_MAX;
  flush(budget);  // an error is met again when epoll tells of it
}

std::optional<int> RemotePeer::move_data(std::int64_t most) {
  std::int64_t budget = most;
  if (const auto error = flush(budget)) return error;
  return receive(budget, [this] { return reads(); });
}

void RemotePeer::drain() {
  std::int64_t budget = INT64_MAX;
  receive(budget, [] { return true; });
}

std::optional<int> RemotePeer::flush(std::int64_t& budget) {
  while (!answers_.empty()) {
    int error = 0;
    const Moved moved = answers_.front().send(data_, budget, error);
    if (moved == Moved::ended) return error;
    if (moved == Moved::some) break;
    answer_bytes_ -= answers_.front().payload_bytes();
    answers_.pop_front();
  }
  return std::nullopt;
}

template <class Wanted>
std::optional<int> RemotePeer::receive(std::int64_t& budget, const Wanted& wanted) {
  const auto shape = [this](const RequestFrame& frame) { return shape_of(frame.header, format_); };
  try {
    while (wanted()) {
      int error = 0;
      const Moved moved = reader_.receive(data_, budget, error, format_.wire, shape);
      if (moved == Moved::ended) return error;
      if (moved == Moved::some) break;
      held_.push_back({reader_.head().header, reader_.take()});
      waiting_ += held_.back().header.payload_bytes;
    }
  } catch (const CorruptMessage& corrupt) {
    give_up(corrupt.what());
  }
  return std::nullopt;
}

}  // namespace tutti::ps
