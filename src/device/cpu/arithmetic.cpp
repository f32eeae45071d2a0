// DistOpt's arithmetic on CPUs: the kernels of this folder, called at once.
#include "device/arithmetic.hpp"
#include "device/cpu/kernels.hpp"

#include <algorithm>
#include <cmath>

#include "base/memory.hpp"
#include "tutti/select.hpp"

namespace tutti::cpu {
namespace {

std::int64_t count_of(const Entries& entries) {
  return std::min<std::int64_t>(*entries.count, entries.most);
}

class CpuArithmetic final : public Arithmetic {
 public:
  CpuArithmetic() : Arithmetic(Stream()) {}

  void copy(std::span<const Piece> pieces) override {
    for (const Piece& piece : pieces) {
      copy_bytes(piece.to, piece.from, piece.count * size_of(DType::f32));
    }
  }

  void narrow(std::span<const Piece> pieces, DType wire, const Narrowing& narrowing) override {
    for (const Piece& piece : pieces) {
      cpu::narrow(static_cast<const float*>(piece.from), piece.to, piece.count, wire, narrowing);
    }
  }

  void widen(std::span<const Piece> pieces, DType wire, float factor,
             std::int64_t* non_finite) override {
    for (const Piece& piece : pieces) {
      const std::int64_t found =
          cpu::widen(piece.from, static_cast<float*>(piece.to), piece.count, wire, factor);
      if (non_finite != nullptr) *non_finite += found;
    }
  }

  void sgd_update(std::span<const SgdPiece> pieces, const SgdStep& step) override {
    for (const SgdPiece& piece : pieces) {
      cpu::sgd_update(piece.parameter, piece.gradient, piece.velocity, piece.count, step);
    }
  }

  void adam_update(std::span<const AdamPiece> pieces, const AdamStep& step) override {
    for (const AdamPiece& piece : pieces) cpu::adam_update(piece, step);
  }

  void adagrad_update(std::span<const AdagradPiece> pieces, const AdagradStep& step) override {
    for (const AdagradPiece& piece : pieces) cpu::adagrad_update(piece, step);
  }

  void accumulate(float* sum, const float* term, std::int64_t count, float decay,
                  float norm_limit) override {
    float scale = 1.0F;
    if (norm_limit > 0.0F) {
      const double norm = std::sqrt(squared_norm(term, count));
      if (norm > norm_limit && std::isfinite(norm)) scale = static_cast<float>(norm_limit / norm);
    }
    if (decay == 0.0F && scale == 1.0F) {
      copy_bytes(sum, term, count * size_of(DType::f32));
    } else {
      cpu::accumulate(sum, term, count, decay, scale);
    }
  }

  void select_above(const float* values, float* residual, std::int64_t count, float threshold,
                    const Selected& selected) override {
    const View kept = residual_view(residual, count);
    store(selector_.above({values, count, DType::f32}, threshold, kept), residual, selected);
  }

  void select_top_k(const float* values, float* residual, std::int64_t count, std::int64_t k,
                    const Selected& selected) override {
    const View kept = residual_view(residual, count);
    store(selector_.top_k({values, count, DType::f32}, k, kept), residual, selected);
  }

  void clear(const Entries& entries, float* data) override {
    for (std::int64_t i = 0; i < count_of(entries); ++i) data[entries.indices[i]] = 0.0F;
  }

  void count_non_finite(const Entries& entries, std::int64_t* count) override {
    *count += std::count_if(entries.values, entries.values + count_of(entries),
                            [](float value) { return !std::isfinite(value); });
  }

  void scatter_add(const Entries& entries, float* sum) override {
    for (std::int64_t i = 0; i < count_of(entries); ++i) {
      sum[entries.indices[i]] += entries.values[i];
    }
  }

  void divide(float* data, std::int64_t count, float divisor) override {
    for (std::int64_t i = 0; i < count; ++i) data[i] = data[i] / divisor;
  }

 private:
  static View residual_view(float* residual, std::int64_t count) {
    return residual == nullptr ? View() : View(residual, count, DType::f32);
  }

  static void store(const SparseView& found, float* residual, const Selected& selected) {
    *selected.count = static_cast<std::uint32_t>(found.count);
    const auto kept = std::min<std::int64_t>(found.count, selected.capacity);
    std::copy_n(found.indices, kept, selected.indices);
    std::copy_n(found.values, kept, selected.values);
    if (residual == nullptr) return;
    for (std::int64_t i = kept; i < found.count; ++i) residual[found.indices[i]] = found.values[i];
  }

  Selector selector_;
};

}  // namespace

std::shared_ptr<Arithmetic> make_arithmetic() { return std::make_shared<CpuArithmetic>(); }

}  // namespace tutti::cpu
