// Arithmetic on CPU memory: element-wise reductions, conversions, and the fused updates of
// optimisers.
#pragma once

#include <cstdint>
#include <span>

#include "device/elementwise.hpp"
#include "device/pieces.hpp"
#include "tutti/dtype.hpp"
#include "tutti/reduce.hpp"

namespace tutti::cpu {

/** How the elements of several sources become one: combine(in[0], ...), and for a sum
 * (factor * in[0] + ...) / divisor. */
struct Combine {
  ReduceKind kind = ReduceKind::sum;  ///< neither average nor premul_sum
  double factor = 1.0;                ///< multiplies every input of a sum
  std::int64_t divisor = 1;           ///< divides a sum
};

/**
 * How outputs are written: the first `plain` as usual, the others past the caches, where their
 * addresses allow it. Streamed lines cost no reading first and do not have to be fetched back from
 * a core that read them last; but who reads them next finds them in memory.
 */
struct Stores {
  std::int64_t plain = kAll;
  static constexpr std::int64_t kAll = INT64_MAX;
};

/**
 * outs[*][i] = the combination of ins[0][i], ins[1][i], ... in this order, for i < count.
 *
 * f16 and bf16 are widened to float, combined, divided and rounded once; f32 and f64 are combined
 * in their own type; integers wrap around and divide towards zero; a logical reduction, as any of
 * booleans, gives 0 or 1 also of one input. An output may be the same memory as any input, element
 * for element. The result has the same bits whatever instruction set runs it; where it is NaN, it
 * is the quiet NaN without sign and payload. At least one input; any number of outputs.
 */
void reduce(std::span<void* const> outs, std::span<const void* const> ins, std::int64_t count,
            DType dtype, const Combine& combine, Stores stores = {});

/** Copies bytes that do not overlap, past the caches if `streamed`. */
void copy(void* to, const void* from, std::int64_t bytes, bool streamed);

/**
 * One pass of SGD over `count` elements (formulas: tutti::SGD). `velocity` is the momentum
 * buffer; null where momentum is 0.
 */
void sgd_update(float* parameter, const float* gradient, float* velocity, std::int64_t count,
                const SgdStep& step);

/** One pass of Adam over the elements of a piece (formulas: tutti::Adam). */
void adam_update(const AdamPiece& piece, const AdamStep& step);

/** One pass of Adagrad over the elements of a piece (formulas: tutti::Adagrad). */
void adagrad_update(const AdagradPiece& piece, const AdagradStep& step);

/**
 * Marks large elements: bit i % 64 of marks[i / 64] tells whether the bits of |value i|, as an
 * integer, are at least `least`; bits from `count` on are 0. Value i is residual[i] + gradient[i],
 * which becomes residual[i]; either may be null and counts for nothing then.
 */
void mark(const float* gradient, float* residual, std::int64_t count, std::uint32_t least,
          std::uint64_t* marks);

/** to[i] = the element of type `wire`, f16 or bf16, nearest to scale * clip(from[i]). */
void narrow(const float* from, void* to, std::int64_t count, DType wire,
            const Narrowing& narrowing);

/** to[i] = factor * from[i]. Returns how many elements of the result are not finite. */
std::int64_t widen(const void* from, float* to, std::int64_t count, DType wire, float factor);

/** sum[i] = decay * sum[i] + scale * term[i]. */
void accumulate(float* sum, const float* term, std::int64_t count, float decay, float scale);

/** The sum of the squares, in double: element i is added to sum number i % 16, then the sums. */
double squared_norm(const float* elements, std::int64_t count);

/** The instruction sets that kernels are built for, weakest first. */
enum class Isa : std::uint8_t { portable, avx2, avx512 };

/** The best that this machine runs, or the weaker one that TUTTI_ISA names. */
Isa active_isa();

}  // namespace tutti::cpu
