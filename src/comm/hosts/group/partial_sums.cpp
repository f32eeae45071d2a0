// Widens, combines and narrows some elements at a time, which stay in the caches.
#include "comm/hosts/group/partial_sums.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/recycled.hpp"

namespace tutti {
namespace {

constexpr std::int64_t kElementsAtOnce = 2048;  // elements
using Block = std::array<float, kElementsAtOnce>;

}  // namespace

void combine_partly(void* partial, std::span<const void* const> inputs, std::int64_t count,
                    DType dtype, const cpu::Combine& combine) {
  if (partial_type(dtype) == dtype) {
    return cpu::reduce({&partial, 1}, inputs, count, dtype, {combine.kind, combine.factor, 1});
  }
  const auto factor = static_cast<float>(combine.factor);
  Block next;
  for (std::int64_t begin = 0; begin < count; begin += kElementsAtOnce) {
    const std::int64_t length = std::min(kElementsAtOnce, count - begin);
    void* const sum = static_cast<float*>(partial) + begin;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto* const input = static_cast<const std::byte*>(inputs[i]) + begin * size_of(dtype);
      auto* const to = i == 0 ? static_cast<float*>(sum) : next.data();
      cpu::widen(input, to, length, dtype, factor);
      if (i == 0) continue;
      const std::array<const void*, 2> terms{sum, next.data()};
      cpu::reduce({&sum, 1}, terms, length, DType::f32, {combine.kind, 1.0, 1});
    }
  }
}

void combine_partials(void* out, std::span<const void* const> partials, std::int64_t count,
                      DType dtype, const cpu::Combine& combine) {
  const cpu::Combine divided{combine.kind, 1.0, combine.divisor};
  if (partial_type(dtype) == dtype) return cpu::reduce({&out, 1}, partials, count, dtype, divided);
  Block sum;
  RecycledVector<const void*> terms(partials.size());
  for (std::int64_t begin = 0; begin < count; begin += kElementsAtOnce) {
    const std::int64_t length = std::min(kElementsAtOnce, count - begin);
    for (std::size_t i = 0; i < terms.size(); ++i) {
      terms[i] = static_cast<const float*>(partials[i]) + begin;
    }
    void* const to = sum.data();
    cpu::reduce({&to, 1}, terms, length, DType::f32, divided);
    cpu::narrow(sum.data(), static_cast<std::byte*>(out) + begin * size_of(dtype), length, dtype,
                {});
  }
}

}  // namespace tutti
