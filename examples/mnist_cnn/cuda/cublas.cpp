// The only file that knows cuBLAS.
#include "cuda/cublas.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "tutti/error.hpp"

namespace mnist::cuda {
namespace {

void* open_library() {
  std::vector<std::string> names{"libcublas.so.13", "libcublas.so.12"};
  if (const char* name = std::getenv("TUTTI_CUBLAS_LIB"); name != nullptr) names = {name};
  std::string reason;
  for (const std::string& name : names) {
    // It has threads of its own: never closed.
    void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library != nullptr) return library;
    const char* error = ::dlerror();
    reason += std::string(reason.empty() ? "" : "; ") + (error == nullptr ? "unknown" : error);
  }
  throw tutti::BackendUnavailable("cuBLAS cannot be loaded: " + reason);
}

template <class Function>
void load(void* library, Function& function, const char* name) {
  void* found = ::dlsym(library, name);
  if (found == nullptr) {
    throw tutti::BackendUnavailable(std::string("cuBLAS has no function ") + name);
  }
  function = reinterpret_cast<Function>(found);
}

void check(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw tutti::Error(std::string(call) + " failed with status " + std::to_string(status));
}

cublasOperation_t operation(Take take) {
  return take == Take::transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
}

}  // namespace

Cublas::Cublas(cudaStream_t stream) {
  void* library = open_library();
  load(library, create_, "cublasCreate_v2");
  load(library, destroy_, "cublasDestroy_v2");
  load(library, set_stream_, "cublasSetStream_v2");
  load(library, sgemm_, "cublasSgemm_v2");
  check(create_(&handle_), "cublasCreate");
  try {
    check(set_stream_(handle_, stream), "cublasSetStream");
  } catch (...) {
    destroy_(handle_);
    throw;
  }
}

Cublas::~Cublas() { destroy_(handle_); }

// cuBLAS stores matrices by columns: it is told to compute the transposed product of the transposed
// matrices, which is the same memory.
void Cublas::multiply(std::int64_t m, std::int64_t n, std::int64_t k, Take take_a, const float* a,
                      Take take_b, const float* b, float beta, float* c) const {
  const float alpha = 1.0F;
  const std::int64_t lda = take_a == Take::transposed ? m : k;
  const std::int64_t ldb = take_b == Take::transposed ? k : n;
  check(sgemm_(handle_, operation(take_b), operation(take_a), static_cast<int>(n),
               static_cast<int>(m), static_cast<int>(k), &alpha, b, static_cast<int>(ldb), a,
               static_cast<int>(lda), &beta, c, static_cast<int>(n)),
        "cublasSgemm");
}

}  // namespace mnist::cuda
