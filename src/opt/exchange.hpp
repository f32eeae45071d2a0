// How the packets of a step travel between the ranks, while others are being made.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/record/trace.hpp"
#include "tutti/communicator.hpp"
#include "tutti/compressor.hpp"

namespace tutti {

/**
 * Exchanges the packets of a step with the other ranks, which start theirs in the same order.
 * Errors are those of Communicator, from start() or from wait().
 */
class Exchange {
 public:
  using Clock = std::chrono::steady_clock;
  struct Arrival {
    Clock::time_point
        begin;  ///< of the collectives, as the thread saw it that ran or launched them
    Clock::time_point end;
    record::Slice slice;  ///< the same in a timeline, if there is one
  };

  /** `home` is the stream on which packets are made and read, at most `packets` in a step. */
  Exchange(std::shared_ptr<Communicator> communicator, Stream home, std::size_t packets)
      : communicator_(std::move(communicator)), home_(std::move(home)), transfers_(packets) {}

  /** A step begins, on a stream of its own if `overlap`: another thread, or one of the GPU's. */
  void begin(bool overlap);
  /** The present timeline; null if there is none. */
  record::Trace* trace() const { return record::trace_of(*communicator_); }
  /** Shows packet number `i`, which has arrived, in the timeline: its time on the way, of which
   * `together` seconds were those of the backward pass. */
  void show(std::size_t i, double together);
  /** Has `compressor` exchange the packet that it has made of `bucket`. */
  void start(Compressor& compressor, const BucketView& bucket);
  /** How many were started since begin(). */
  std::size_t started() const { return started_; }
  /** What `home` is given from now on finds packet number `i` arrived. On a CPU this blocks. */
  Arrival wait(std::size_t i);
  /** What this rank has sent to other hosts since the first packet was started. */
  std::int64_t bytes_between() const { return communicator_->bytes_between() - sent_before_; }

 private:
  struct Transfer {
    Event collective;
    Event noted;  // once both times are
    Arrival arrival;
  };

  std::shared_ptr<Communicator> communicator_;
  Stream home_;
  bool overlap_ = false;
  std::size_t started_ = 0;
  std::int64_t sent_before_ = 0;
  std::vector<Transfer> transfers_;
  Stream apart_;  // inline until the first step with overlap; ends before what it writes to
};

}  // namespace tutti
