// Arithmetic on memory of a GPU. Every function launches its work on `stream` and returns; the
// stream's device is current. Pointers are of that device and may have any alignment that their
// type has; aligned to 16 bytes they are fastest. Errors: Error, of the launch.
#pragma once

#include <cstdint>
#include <span>

#include "communicator/cpu/kernels.hpp"
#include "tutti/device.hpp"

namespace tutti::cuda {

/** `count` elements that become as many others. */
struct Piece {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t count = 0;
};

/**
 * to[i] = the element of `wire` (f32, f16 or bf16) nearest to scale * clip(from[i]), which is f32:
 * gradients become a packet. One launch for each 128 pieces.
 */
void narrow(std::span<const Piece> pieces, DType wire, const cpu::Narrowing& narrowing,
            const Stream& stream);
/**
 * to[i] = factor * from[i], from elements of `wire` to f32: a packet becomes gradients.
 * `non_finite`, if not null, is increased by the number of results that are not finite.
 */
void widen(std::span<const Piece> pieces, DType wire, float factor, std::uint64_t* non_finite,
           const Stream& stream);

/** What SGD updates; velocity is null where momentum is 0. */
struct SgdPiece {
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float* velocity = nullptr;  ///< of all pieces of a call, or of none
  std::int64_t count = 0;
};
/** One step of SGD on a list of tensors; the same bits as cpu::sgd_update(). One launch for each
 * 96 pieces. */
void sgd_update(std::span<const SgdPiece> pieces, const cpu::SgdStep& step, const Stream& stream);

/** Where the selected elements go, in ascending order of their indices. */
struct Selected {
  std::uint32_t* indices = nullptr;
  float* values = nullptr;
  std::uint32_t* count = nullptr;  ///< how many were selected, whether they had room or not
  std::uint32_t capacity = 0;      ///< what has no room is dropped
};

/** How many elements a vector to select from may have. */
inline constexpr std::int64_t kMostSelectable = (std::int64_t{1} << 31) - 1;

/**
 * Selects the elements of `values` whose magnitude is at least `threshold`, and those that are not
 * finite: tutti::Selector::above. With a residual, values are residual[i] + values[i]; of what is
 * selected the residual becomes zero, of the others it is all they have. One pass.
 */
void select_above(const float* values, float* residual, std::int64_t count, float threshold,
                  const Selected& selected, const Stream& stream);

/**
 * Selects the `k` elements of largest magnitude, of equal ones those of lowest index, likewise:
 * tutti::Selector::top_k. A sample brackets the k-th largest magnitude; one pass over all elements
 * keeps what is inside or above the bracket, and the exact selection is among these. If the
 * sample misled, three more passes find the magnitude digit by digit, and one selects.
 */
void select_top_k(const float* values, float* residual, std::int64_t count, std::int64_t k,
                  const Selected& selected, const Stream& stream);

/** sum[indices[i]] += values[i] for i < min(*count, most); indices are different from each other,
 * so calls in the order of the ranks add in that order. */
void scatter_add(const std::uint32_t* indices, const float* values, const std::uint32_t* count,
                 std::int64_t most, float* sum, const Stream& stream);

}  // namespace tutti::cuda
