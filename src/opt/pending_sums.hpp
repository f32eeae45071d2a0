// Sums over the ranks that were started and not waited for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tutti/communicator.hpp"

namespace tutti {

/** What DistOpt::all_reduce, fused_all_reduce and wait do; see there. */
class PendingSums {
 public:
  explicit PendingSums(std::shared_ptr<Communicator> communicator)
      : communicator_(std::move(communicator)) {}

  /** Starts the sum of `tensor`, in place. */
  void start(View tensor);
  /** Copies `tensors` behind what was filled before. Collective where the buffer has to grow. */
  void fill(std::span<const View> tensors);
  /** Starts one sum of all that was filled. `tensors` must be that, in order. */
  void send(std::span<const View> tensors);
  /** Ends what was started. */
  void wait();

  /** Whether anything was started that wait() has not ended. */
  bool any() const { return !sums_.empty(); }

 private:
  struct Sum {
    Event arrival;
    const std::byte* fused = nullptr;  // where the sums of `tensors` are, one after the other
    std::vector<View> tensors;
  };

  Event sum(View tensor);
  void check_fill(std::span<const View> tensors) const;
  void reserve(std::int64_t bytes);
  std::byte* fused() const { return static_cast<std::byte*>(buffer_.data()) + begin_; }

  std::shared_ptr<Communicator> communicator_;
  std::vector<View> filled_;  // what lies in [begin_, end_) of buffer_
  std::int64_t begin_ = 0;    // in bytes; what lies in front of it is on its way
  std::int64_t end_ = 0;
  std::vector<Sum> sums_;
  Buffer buffer_;                 // symmetric; grows, never shrinks
  std::vector<Buffer> outgrown_;  // smaller ones in which sums are on their way
  Stream stream_;                 // inline until the first sum; ends before the buffers
};

}  // namespace tutti
