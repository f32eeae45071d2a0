// Sums that are made in two steps: between them 16-bit elements are float, so none is rounded
// twice.
#pragma once

#include <cstdint>
#include <span>

#include "device/cpu/kernels.hpp"
#include "tutti/dtype.hpp"

namespace tutti {

/** The type of what is not rounded yet. */
constexpr DType partial_type(DType dtype) {
  return dtype == DType::f16 || dtype == DType::bf16 ? DType::f32 : dtype;
}

/** `partial`, of the partial type, = the combination of `inputs`, in their order; not divided. */
void combine_partly(void* partial, std::span<const void* const> inputs, std::int64_t count,
                    DType dtype, const cpu::Combine& combine);

/** `out` = the combination of `partials`, in their order, divided; a 16-bit element is rounded. */
void combine_partials(void* out, std::span<const void* const> partials, std::int64_t count,
                      DType dtype, const cpu::Combine& combine);

}  // namespace tutti
