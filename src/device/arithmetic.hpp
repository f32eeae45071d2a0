// What DistOpt does to elements, on the memory of whatever device they lie in.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "device/elementwise.hpp"
#include "device/pieces.hpp"
#include "tutti/device.hpp"

namespace tutti {

/** Where selected elements go, in ascending order of their indices. */
struct Selected {
  std::uint32_t* indices = nullptr;
  float* values = nullptr;
  std::uint32_t* count = nullptr;  ///< how many were selected, whether they had room or not
  std::uint32_t capacity = 0;      ///< what has no room is dropped, and stays in a residual
};

/** Entries of a sparse vector: the first min(*count, most). */
struct Entries {
  const std::uint32_t* indices = nullptr;
  const float* values = nullptr;
  const std::uint32_t* count = nullptr;
  std::int64_t most = 0;
};

/** How many elements a vector to select from may have. */
inline constexpr std::int64_t kMostSelectable = (std::int64_t{1} << 31) - 1;

/**
 * Arithmetic on the memory of one device, in the order of the calls. On a CPU a call is done when
 * it returns; on a GPU it has been launched on the stream. All pointers, also those to counts, are
 * of that device; they may have any alignment that their type has. The formulas give the same bits
 * on every device, unless they say otherwise.
 */
class Arithmetic {
 public:
  explicit Arithmetic(Stream stream) : stream_(std::move(stream)) {}
  Arithmetic(const Arithmetic&) = delete;
  Arithmetic& operator=(const Arithmetic&) = delete;
  virtual ~Arithmetic() = default;

  /** On which the work is done; the inline stream on a CPU. */
  const Stream& stream() const { return stream_; }
  Device device() const { return stream_.device(); }

  /** Copies f32 elements of tensors that do not overlap. */
  virtual void copy(std::span<const Piece> pieces) = 0;
  /** From f32 to `wire`; see cpu::narrow(). */
  virtual void narrow(std::span<const Piece> pieces, DType wire, const Narrowing& narrowing) = 0;
  /** From `wire` to f32: to[i] = factor * from[i]. Adds the number of results that are not finite
   * to *non_finite, if that is not null. */
  virtual void widen(std::span<const Piece> pieces, DType wire, float factor,
                     std::int64_t* non_finite) = 0;
  /** See cpu::sgd_update(). */
  virtual void sgd_update(std::span<const SgdPiece> pieces, const SgdStep& step) = 0;
  /** See cpu::adam_update(). */
  virtual void adam_update(std::span<const AdamPiece> pieces, const AdamStep& step) = 0;
  /** See cpu::adagrad_update(). */
  virtual void adagrad_update(std::span<const AdagradPiece> pieces, const AdagradStep& step) = 0;
  /**
   * sum[i] = decay * sum[i] + scale * term[i], where scale = min(1, norm_limit / norm of term), or
   * 1 if norm_limit is 0 or the norm not finite. `sum` may be `term` if decay is 0. A GPU adds up
   * the norm in another order than a CPU.
   */
  virtual void accumulate(float* sum, const float* term, std::int64_t count, float decay,
                          float norm_limit) = 0;

  /** tutti::Selector::above; count is at most kMostSelectable, residual null for none. */
  virtual void select_above(const float* values, float* residual, std::int64_t count,
                            float threshold, const Selected& selected) = 0;
  /** tutti::Selector::top_k, likewise. */
  virtual void select_top_k(const float* values, float* residual, std::int64_t count,
                            std::int64_t k, const Selected& selected) = 0;
  /** data[index] = 0 for each entry. */
  virtual void clear(const Entries& entries, float* data) = 0;
  /** Adds the number of values that are not finite to *count. */
  virtual void count_non_finite(const Entries& entries, std::int64_t* count) = 0;
  /** sum[index] += value for each entry; no index is there twice. */
  virtual void scatter_add(const Entries& entries, float* sum) = 0;
  /** data[i] = data[i] / divisor. */
  virtual void divide(float* data, std::int64_t count, float divisor) = 0;

 private:
  Stream stream_;
};

/** The arithmetic of the device of `stream`, which is inline or a GPU's. */
std::shared_ptr<Arithmetic> make_arithmetic(const Stream& stream);

namespace cpu {
std::shared_ptr<Arithmetic> make_arithmetic();
}
namespace cuda {
/** Throws BackendUnavailable where the build has no CUDA. */
std::shared_ptr<Arithmetic> make_arithmetic(const Stream& stream);
}  // namespace cuda

}  // namespace tutti
