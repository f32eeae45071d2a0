// The end of a block of sums.
#include "comm/sparse/sum.hpp"

#include "device/cpu/kernels.hpp"
#include "tutti/sparse.hpp"

namespace tutti {

std::string_view name_of(SparseAlgorithm algorithm) {
  constexpr std::array<std::string_view, 4> kNames{"none", "gather", "split", "dense"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::int64_t entries_of(const float* values, std::int64_t count) {
  return count - std::count(values, values + count, 0.0F);
}

double density_of(std::int64_t entries, std::int64_t count) {
  return count == 0 ? 0.0 : static_cast<double>(entries) / static_cast<double>(count);
}

std::int64_t finish_sums(float* sums, std::int64_t count, std::int64_t divisor) {
  void* out = sums;
  const void* in = sums;
  cpu::reduce({&out, 1}, {&in, 1}, count, DType::f32, {ReduceKind::sum, 1.0, divisor});
  return entries_of(sums, count);
}

}  // namespace tutti
