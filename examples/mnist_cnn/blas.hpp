// The matrix product, from OpenBLAS.
#pragma once

#include <cstdint>

namespace mnist {

/** Whether a matrix is taken as it lies in memory, or transposed. */
enum class Take : bool { as_is, transposed };

/**
 * c [m, n] = a [m, k] * b [k, n] + beta * c, row-major and dense. These are the shapes of what is
 * multiplied: a matrix that is taken transposed lies in memory with its sides exchanged.
 */
void multiply(std::int64_t m, std::int64_t n, std::int64_t k, Take take_a, const float* a,
              Take take_b, const float* b, float beta, float* c);

/** From now on, this process multiplies on one thread: the parallelism is in the ranks. */
void use_one_blas_thread();

}  // namespace mnist
