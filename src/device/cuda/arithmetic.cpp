// DistOpt's arithmetic on GPUs: the kernels of this folder, launched on one stream.
#include "device/arithmetic.hpp"

#include "device/cuda/check.hpp"
#include "device/cuda/kernels.hpp"

namespace tutti::cuda {
namespace {

class GpuArithmetic final : public Arithmetic {
 public:
  explicit GpuArithmetic(const Stream& stream) : Arithmetic(stream), scratch_(stream) {}

  void copy(std::span<const Piece> pieces) override {
    const DeviceGuard guard(ordinal());
    cuda::narrow(pieces, DType::f32, {}, stream());
  }

  void narrow(std::span<const Piece> pieces, DType wire, const Narrowing& narrowing) override {
    const DeviceGuard guard(ordinal());
    cuda::narrow(pieces, wire, narrowing, stream());
  }

  void widen(std::span<const Piece> pieces, DType wire, float factor,
             std::int64_t* non_finite) override {
    const DeviceGuard guard(ordinal());
    cuda::widen(pieces, wire, factor, non_finite, stream());
  }

  void sgd_update(std::span<const SgdPiece> pieces, const SgdStep& step) override {
    const DeviceGuard guard(ordinal());
    cuda::sgd_update(pieces, step, stream());
  }

  void adam_update(std::span<const AdamPiece> pieces, const AdamStep& step) override {
    const DeviceGuard guard(ordinal());
    cuda::adam_update(pieces, step, stream());
  }

  void adagrad_update(std::span<const AdagradPiece> pieces, const AdagradStep& step) override {
    const DeviceGuard guard(ordinal());
    cuda::adagrad_update(pieces, step, stream());
  }

  void accumulate(float* sum, const float* term, std::int64_t count, float decay,
                  float norm_limit) override {
    const DeviceGuard guard(ordinal());
    cuda::accumulate(sum, term, count, decay, norm_limit, scratch_);
  }

  void select_above(const float* values, float* residual, std::int64_t count, float threshold,
                    const Selected& selected) override {
    const DeviceGuard guard(ordinal());
    cuda::select_above(values, residual, count, threshold, selected, scratch_);
  }

  void select_top_k(const float* values, float* residual, std::int64_t count, std::int64_t k,
                    const Selected& selected) override {
    const DeviceGuard guard(ordinal());
    cuda::select_top_k(values, residual, count, k, selected, scratch_);
  }

  void clear(const Entries& entries, float* data) override {
    const DeviceGuard guard(ordinal());
    cuda::clear(entries, data, stream());
  }

  void count_non_finite(const Entries& entries, std::int64_t* count) override {
    const DeviceGuard guard(ordinal());
    cuda::count_non_finite(entries, count, stream());
  }

  void scatter_add(const Entries& entries, float* sum) override {
    const DeviceGuard guard(ordinal());
    cuda::scatter_add(entries, sum, stream());
  }

  void divide(float* data, std::int64_t count, float divisor) override {
    const DeviceGuard guard(ordinal());
    cuda::divide(data, count, divisor, stream());
  }

 private:
  int ordinal() const { return device().ordinal; }

  Scratch scratch_;
};

}  // namespace

void load_kernels() {
  load_accumulate();
  load_adagrad();
  load_adam();
  load_compact();
  load_convert();
  load_scatter();
  load_sgd();
  load_top_k();
}

std::shared_ptr<Arithmetic> make_arithmetic(const Stream& stream) {
  return std::make_shared<GpuArithmetic>(stream);
}

}  // namespace tutti::cuda
