// What kernels on a stream need: memory and graphs, kept from call to call.
#pragma once

#include <cstdint>
#include <utility>

#include "device/cuda/launch_graphs.hpp"
#include "tutti/device.hpp"

namespace tutti::cuda {

/**
 * Memory for the kernels of one stream: what was launched before has ended with it, since a stream
 * runs its kernels in order. It grows and is kept: the pool behind Stream::allocate(), which all
 * streams of a GPU share, may let one wait for another.
 */
class Scratch {
 public:
  explicit Scratch(Stream stream) : stream_(std::move(stream)) {}

  const Stream& stream() const { return stream_; }
  /** Of kernels on the stream. */
  LaunchGraphs& graphs() { return graphs_; }

  /** At least `bytes`, aligned to 256, until the next call; what it holds is anything. */
  void* take(std::int64_t bytes) {
    if (bytes > memory_.bytes()) {
      memory_ = Buffer();  // before: both need not fit
      memory_ = stream_.allocate(bytes);
    }
    return memory_.data();
  }

  /** Zero. Who counts with it leaves it so, as ends_last() does. */
  std::uint32_t* counter() {
    if (counter_.bytes() == 0) {
      counter_ = stream_.allocate(sizeof(std::uint32_t));
      stream_.fill_with_zeros(counter_.view(DType::u8));
    }
    return static_cast<std::uint32_t*>(counter_.data());
  }

 private:
  Stream stream_;
  Buffer memory_;
  Buffer counter_;
  LaunchGraphs graphs_;
};

}  // namespace tutti::cuda
