// Arrays of f32 in memory of a device, and how the CPU reads and writes them.
#pragma once

#include <cstdint>
#include <span>
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

/** A number in memory of a device, to which kernels add. */
class Tally {
 public:
  explicit Tally(const Stream& stream)
      : stream_(stream), memory_(stream.allocate(size_of(DType::i64))) {
    stream_.fill_with_zeros(memory_.view(DType::i64));
  }

  std::int64_t* where() const { return static_cast<std::int64_t*>(memory_.data()); }
  /** Blocks. What was added since the last call. */
  std::int64_t take() {
    std::int64_t value = 0;
    stream_.copy(std::span(&value, 1), memory_.view(DType::i64)).wait();
    stream_.fill_with_zeros(memory_.view(DType::i64));
    return value;
  }

 private:
  Stream stream_;
  Buffer memory_;
};

}  // namespace tutti
