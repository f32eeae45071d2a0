// A server's end of the link to a worker of another host.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>

#include "ps/link/frame.hpp"
#include "ps/link/peer.hpp"

namespace tutti::ps {

/** Requests come as frames over a connection of data, which is read as long as those that have come
 * are taken, and as the worker takes the answers. */
class RemotePeer final : public Peer {
 public:
  RemotePeer(mpi::Socket control, mpi::Socket data, int worker, RowFormat format);

  int data() const override { return data_.get(); }
  std::uint32_t data_events() const override;
  bool shares_memory() const override { return false; }
  bool is_sending() const override { return data_ && !answers_.empty(); }

 private:
  /** A request, from when it has come until it is answered. */
  struct Held {
    RequestHeader header;
    PayloadMemory payload;
  };

  std::optional<Request> take_request() override;
  void send_answer(const Request& request, const ReplyHeader& header,
                   std::span<const std::byte> payload) override;
  std::optional<int> move_data(std::int64_t most) override;
  void drain() override;
  void close_data() override { data_ = {}; }
  /** Receives requests while `wanted()`. */
  template <class Wanted>
  std::optional<int> receive(std::int64_t& budget, const Wanted& wanted);
  std::optional<int> flush(std::int64_t& budget);
  bool reads() const;

  mpi::Socket data_;
  RowFormat format_;
  FrameReader<RequestFrame> reader_;
  std::deque<Held> held_;
  std::size_t handed_out_ = 0;  // of those
  std::uint64_t answered_ = 0;  // requests before the first of those
  std::int64_t waiting_ = 0;    // bytes of requests that are not handed out
  std::deque<OutgoingFrame<ReplyFrame>> answers_;
  std::int64_t answer_bytes_ = 0;  // of those
};

}  // namespace tutti::ps
