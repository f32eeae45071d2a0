// The matrix product on a GPU, from cuBLAS, which is opened at run time.
#pragma once

#include <cublas_v2.h>

#include <cstdint>

#include "blas.hpp"

namespace mnist::cuda {

/** A handle of cuBLAS that works on one stream. */
class Cublas {
 public:
  /** The stream's device is current. Throws tutti::BackendUnavailable naming what is missing. */
  explicit Cublas(cudaStream_t stream);
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;
  ~Cublas();

  /** mnist::multiply() on memory of the GPU; in full float32, cuBLAS's default. */
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, Take take_a, const float* a,
                Take take_b, const float* b, float beta, float* c) const;

 private:
  decltype(&cublasCreate_v2) create_ = nullptr;
  decltype(&cublasDestroy_v2) destroy_ = nullptr;
  decltype(&cublasSetStream_v2) set_stream_ = nullptr;
  decltype(&cublasSgemm_v2) sgemm_ = nullptr;
  cublasHandle_t handle_ = nullptr;
};

}  // namespace mnist::cuda
