// A worker's end of the link to a server of its host.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <optional>

#include "ps/link/block_heap.hpp"
#include "ps/link/host_layout.hpp"
#include "ps/link/link_end.hpp"

namespace tutti::ps {

/**
 * Requests lie in a ring in shared memory of this worker's, payloads beside it, and the server
 * reads both there. For a server that sleeps the doorbell is rung. Who waits for an answer looks
 * for a moment, and sleeps on a counter then.
 */
class HostLink final : public LinkEnd {
 public:
  /** `requests` is this worker's object, `answers` the server's. */
  HostLink(mpi::Socket control, Name server, std::unique_ptr<BlockHeap> requests,
           std::shared_ptr<shm::Mapping> answers, std::chrono::milliseconds timeout);

  Draft draft(std::int64_t bytes) override;
  void discard(const Draft& draft) override;
  std::uint64_t send(const RequestHeader& header, const Draft& draft) override;
  void announce() override;
  bool on_this_host() const override { return true; }

 private:
  bool has_answered(std::uint64_t number) const {
    return slot_of(answers_->slots, number).number.load(std::memory_order_acquire) >= number;
  }
  bool wait_for_answer(std::uint64_t number) override;
  void advance() override;
  /** Rings for a server that sleeps. Locked. */
  void wake_server();

  std::unique_ptr<BlockHeap> heap_;
  std::shared_ptr<shm::Mapping> mapping_;  // of the answers
  RequestArea* requests_;
  AnswerArea* answers_;
  std::optional<FileDescriptor> doorbell_;  // since it was first needed; may be none
  // Since somebody last waited. Who waits next, maybe long after and for another request, offers
  // its core before it has looked for long: that costs little, and is right if the server has
  // slept.
  std::atomic<bool> has_rung_ = false;
  std::array<std::int64_t, kMostUnanswered> in_flight_{};  // blocks of requests; 0: none
};

}  // namespace tutti::ps
