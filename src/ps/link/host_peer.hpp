// A server's end of the link to a worker of its host.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "ps/link/block_heap.hpp"
#include "ps/link/host_layout.hpp"
#include "ps/link/peer.hpp"

namespace tutti::ps {

/** Reads requests and their payloads where the worker has put them; of the connection it wants
 * nothing but its end. */
class HostPeer final : public Peer {
 public:
  /** `requests` is the worker's object, `answers` this server's. */
  HostPeer(mpi::Socket control, int worker, std::shared_ptr<shm::Mapping> requests,
           std::unique_ptr<BlockHeap> answers);

  bool shares_memory() const override { return true; }
  void set_doorbell(const DoorbellAddress& address) override { answers_->doorbell = address; }
  void set_sleeping(bool sleeping) override;

 private:
  std::optional<Request> take_request() override;
  void send_answer(const Request& request, const ReplyHeader& header,
                   std::span<const std::byte> payload) override;
  void close_data() override { answers_->answered.wake(); }
  /** Puts a payload where the worker will read it. Throws SystemError. */
  std::int64_t place(std::span<const std::byte> payload);

  std::shared_ptr<shm::Mapping> requests_;
  std::unique_ptr<BlockHeap> heap_;
  RequestArea* asked_;
  AnswerArea* answers_;
  std::uint64_t handed_out_ = 0;
  std::uint64_t answered_ = 0;
  std::deque<std::pair<std::uint64_t, std::int64_t>> replies_;  // requests, and blocks of payloads
};

}  // namespace tutti::ps
