// What the kernels are measured beside.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace tutti::bench {

/** Launches a pass that reads `count` floats and writes next to nothing. */
void read_pass(const float* data, std::int64_t count, float* sink, cudaStream_t stream);

/** Launches CUB's radix sort of (magnitude, index) pairs, largest first. */
class PairSort {
 public:
  explicit PairSort(std::int64_t count);
  PairSort(const PairSort&) = delete;
  PairSort& operator=(const PairSort&) = delete;
  ~PairSort();
  void run(const float* data, cudaStream_t stream);

 private:
  std::int64_t count_;
  std::uint32_t* keys_ = nullptr;  // in and out
  std::uint32_t* indices_ = nullptr;
  void* scratch_ = nullptr;
  std::size_t scratch_bytes_ = 0;
};

}  // namespace tutti::bench
