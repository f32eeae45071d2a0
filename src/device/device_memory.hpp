// Arrays of f32 in memory of a device, and how the CPU reads and writes them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tutti/device.hpp"

namespace tutti {

/** `elements` zeros in memory of the stream's device. */
inline Buffer zeros(const Stream& stream, std::int64_t elements) {
  Buffer buffer = stream.allocate(elements * size_of(DType::f32));
  stream.fill_with_zeros(buffer.view(DType::f32));
  return buffer;
}

/** Blocks. The elements of a device, after what the stream was given before. */
inline std::vector<float> read(const Stream& stream, ConstView elements) {
  std::vector<float> values(static_cast<std::size_t>(elements.count));
  stream.copy(std::span<float>(values), elements).wait();
  return values;
}

/** Blocks. A copy in memory of the stream's device. */
inline Buffer write(const Stream& stream, std::span<const float> values) {
  Buffer buffer = stream.allocate(static_cast<std::int64_t>(values.size_bytes()));
  stream.copy(buffer.view(DType::f32), values).wait();
  return buffer;
}

/**
 * A number in memory of a device, to which kernels add. A GPU's is read a step late, and nothing
 * waits for it.
 */
class Tally {
 public:
  explicit Tally(const Stream& stream) : stream_(stream), sum_(stream.allocate(kBytes)) {
    stream_.fill_with_zeros(sum_.view(DType::i64));
    if (on_gpu()) copy_ = Buffer::pinned(kBytes);
  }

  std::int64_t* where() const { return static_cast<std::int64_t*>(sum_.data()); }

  /** What was added since the last call; on a GPU, between the last two calls. */
  std::int64_t take() {
    if (!on_gpu()) return std::exchange(*where(), 0);
    std::int64_t sum = taken_;
    if (copied_) {
      copied_->wait();  // it was launched at the end of the last step, which has ended
      sum = copy_.as<std::int64_t>()[0];
    }
    copied_ = stream_.copy(copy_.view(DType::i64), sum_.view(DType::i64));
    return sum - std::exchange(taken_, sum);
  }

 private:
  static constexpr std::int64_t kBytes = size_of(DType::i64);

  bool on_gpu() const { return stream_.device().kind == DeviceKind::cuda; }

  Stream stream_;
  Buffer sum_;   // only grows
  Buffer copy_;  // of sum_, as of the last call, in page-locked memory
  std::optional<Event> copied_;
  std::int64_t taken_ = 0;  // of sum_
};

}  // namespace tutti
