// The only file that knows OpenBLAS.
#include "blas.hpp"

#include <cblas.h>

namespace mnist {

void multiply(std::int64_t m, std::int64_t n, std::int64_t k, Take take_a, const float* a,
              Take take_b, const float* b, float beta, float* c) {
  const bool turn_a = take_a == Take::transposed;
  const bool turn_b = take_b == Take::transposed;
  cblas_sgemm(CblasRowMajor, turn_a ? CblasTrans : CblasNoTrans, turn_b ? CblasTrans : CblasNoTrans,
              static_cast<blasint>(m), static_cast<blasint>(n), static_cast<blasint>(k), 1.0F, a,
              static_cast<blasint>(turn_a ? m : k), b, static_cast<blasint>(turn_b ? k : n), beta,
              c, static_cast<blasint>(n));
}

void use_one_blas_thread() { openblas_set_num_threads(1); }

}  // namespace mnist
