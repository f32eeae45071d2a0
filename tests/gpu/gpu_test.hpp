// A test on GPU 0, and copies to and from it.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda/kernels.hpp"
#include "device/cuda/scratch.hpp"
#include "tutti/device.hpp"

namespace tutti::test {

inline constexpr Device kGpu{DeviceKind::cuda, 0};

/** Arrays in memory of a GPU. */
class GpuMemory {
 public:
  explicit GpuMemory(Stream stream = {}) : stream_(std::move(stream)) {}

  const Stream& stream() const { return stream_; }

  /** Room for `count` elements behind `offset` others, which moves it off its alignment. */
  template <class T>
  struct Array {
    Buffer memory;
    T* data = nullptr;
    std::int64_t count = 0;
    View view() const {
      return {data, count * static_cast<std::int64_t>(sizeof(T)), DType::u8, memory.device()};
    }
  };

  template <class T>
  Array<T> room(std::int64_t count, std::int64_t offset = 0) const {
    Array<T> array;
    array.memory = stream_.allocate((count + offset) * static_cast<std::int64_t>(sizeof(T)));
    array.data = static_cast<T*>(array.memory.data()) + offset;
    array.count = count;
    return array;
  }

  template <class T>
  Array<T> to_gpu(const std::vector<T>& values, std::int64_t offset = 0) const {
    Array<T> array = room<T>(static_cast<std::int64_t>(values.size()), offset);
    stream_.copy(array.view(), ConstView(values.data(), array.view().count, DType::u8)).wait();
    return array;
  }

  template <class T>
  std::vector<T> from_gpu(const Array<T>& array) const {
    std::vector<T> values(static_cast<std::size_t>(array.count));
    stream_.copy(View(values.data(), array.view().count, DType::u8), array.view()).wait();
    return values;
  }

 protected:
  Stream stream_;
};

/** Skips its tests where there is no GPU. */
class GpuTest : public ::testing::Test, protected GpuMemory {
 protected:
  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU: nothing was tested";
    stream_ = Stream::on(kGpu);
  }

  /** Runs an operation that launches kernels, to its end. */
  void run(const std::function<void()>& operation) const { stream_.submit(operation).wait(); }
};

/** Such a test that calls kernels. */
class KernelTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (gpu_count() == 0) return;
    cuda::load_kernels();
    scratch_ = cuda::Scratch(stream_);
  }

  cuda::Scratch scratch_{Stream()};
};

}  // namespace tutti::test
