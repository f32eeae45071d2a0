// Arithmetic on memory of a GPU. Every function launches its work on `stream`, or that of
// `scratch`, and returns; the stream's device is current. Pointers are of that device and may have
// any alignment that their type has; aligned to 16 bytes they are fastest. Errors: Error, of the
// launch.
#pragma once

#include <cstdint>
#include <span>

#include "device/arithmetic.hpp"
#include "device/cuda/scratch.hpp"
#include "tutti/device.hpp"

namespace tutti::cuda {

/**
 * to[i] = the element of `wire` (f32, f16 or bf16) nearest to scale * clip(from[i]), which is f32:
 * gradients become a packet. One launch for each 128 pieces.
 */
void narrow(std::span<const Piece> pieces, DType wire, const Narrowing& narrowing,
            const Stream& stream);
/**
 * to[i] = factor * from[i], from elements of `wire` to f32: a packet becomes gradients.
 * `non_finite`, if not null, is increased by the number of results that are not finite.
 */
void widen(std::span<const Piece> pieces, DType wire, float factor, std::int64_t* non_finite,
           const Stream& stream);

/** One step of SGD on a list of tensors; the same bits as cpu::sgd_update(). One launch for each
 * 96 pieces. */
void sgd_update(std::span<const SgdPiece> pieces, const SgdStep& step, const Stream& stream);
/** One step of Adam on a list of tensors; the same bits as cpu::adam_update(). One launch for each
 * 80 pieces. */
void adam_update(std::span<const AdamPiece> pieces, const AdamStep& step, const Stream& stream);
/** One step of Adagrad on a list of tensors; the same bits as cpu::adagrad_update(). One launch for
 * each 96 pieces. */
void adagrad_update(std::span<const AdagradPiece> pieces, const AdagradStep& step,
                    const Stream& stream);

/**
 * Selects the elements of `values` whose magnitude is at least `threshold`, and those that are not
 * finite: tutti::Selector::above. With a residual, values are residual[i] + values[i]; of what is
 * selected the residual becomes zero, of the others it is all they have. One pass, in two launches.
 */
void select_above(const float* values, float* residual, std::int64_t count, float threshold,
                  const Selected& selected, Scratch& scratch);

/**
 * Selects the `k` elements of largest magnitude, of equal ones those of lowest index, likewise:
 * tutti::Selector::top_k. A sample bounds the k-th largest magnitude; one pass over all elements
 * keeps what reaches the bound, and the exact selection is among these. Five launches, two up to
 * 16384 elements, as one graph where all arguments are those of an earlier call. If the sample
 * misled, the selection takes three or four more passes.
 */
void select_top_k(const float* values, float* residual, std::int64_t count, std::int64_t k,
                  const Selected& selected, Scratch& scratch);

/** See Arithmetic::accumulate(). The norm is added up in double, in an order that depends on the
 * count alone. Two launches, one without a norm. */
void accumulate(float* sum, const float* term, std::int64_t count, float decay, float norm_limit,
                Scratch& scratch);

/** See Arithmetic, also for the next three. Calls of scatter_add() in the order of the ranks add
 * in that order. */
void scatter_add(const Entries& entries, float* sum, const Stream& stream);
void clear(const Entries& entries, float* data, const Stream& stream);
void count_non_finite(const Entries& entries, std::int64_t* count, const Stream& stream);
void divide(float* data, std::int64_t count, float divisor, const Stream& stream);

/** Loads all kernels onto the current device, file by file. CUDA would load each before it runs
 * first, for which it may wait until others have ended. */
void load_kernels();
void load_accumulate();
void load_adagrad();
void load_adam();
void load_compact();
void load_convert();
void load_scatter();
void load_sgd();
void load_top_k();

}  // namespace tutti::cuda
