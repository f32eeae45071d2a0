// A worker's end of the link to a server of its host.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/waiter.hpp"
#include "comm/mpi/socket.hpp"
#include "ps/link/block_heap.hpp"
#include "ps/link/host_layout.hpp"
#include "ps/link/link.hpp"
#include "ps/link/meeting.hpp"
#include "ps/link/replies.hpp"

namespace tutti::ps {

/**
 * Requests lie in a ring in shared memory of this worker's, payloads beside it, and the server
 * reads both there. A server that sleeps is sent a byte over the socket, whose end tells that its
 * process has ended. Who waits for an answer looks for a moment, and sleeps on a counter then.
 */
class HostLink final : public Link {
 public:
  /** `requests` is this worker's object, `answers` the server's. */
  HostLink(mpi::Socket socket, Name server, std::unique_ptr<BlockHeap> requests,
           std::shared_ptr<shm::Mapping> answers, std::chrono::milliseconds timeout);
  ~HostLink() override;

  Draft draft(std::int64_t bytes) override;
  std::uint64_t send(const RequestHeader& header, const Draft& draft) override;
  std::uint64_t answered() override;
  Reply wait(std::uint64_t number) override;
  void forget(std::uint64_t number) override;
  Reply refusal() override;
  void check() override;
  bool on_this_host() const override { return true; }

 private:
  /** Whether the server has answered request `number`. */
  bool has_answered(std::uint64_t number) const {
    return slot_of(answers_->slots, number).number.load(std::memory_order_acquire) >= number;
  }
  /** Waits for that; false at the deadline. Throws PeerLost. */
  bool wait_for_answer(std::uint64_t number);
  /** Reads the answers that have come, and frees what they are to. Locked. */
  void advance();
  void throw_if_lost();
  /** From now on the link is lost. */
  [[noreturn]] void lose(const std::string& reason);

  std::mutex mutex_;
  mpi::Socket socket_;
  Name server_;
  std::chrono::milliseconds timeout_;
  std::unique_ptr<BlockHeap> heap_;
  std::shared_ptr<shm::Mapping> mapping_;  // of the answers
  RequestArea* requests_;
  AnswerArea* answers_;
  std::uint64_t sent_ = 0;
  std::uint64_t taken_ = 0;                                // answers
  std::array<std::int64_t, kMostUnanswered> in_flight_{};  // blocks of requests; 0: none
  Replies replies_;
  bool stopped_ = false;
  std::optional<std::string> lost_;
  std::atomic<bool> is_lost_ = false;  // the same, without the lock
};

}  // namespace tutti::ps
