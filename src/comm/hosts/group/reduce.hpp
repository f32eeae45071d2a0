// Reductions whose results one member gets, or each a block of them.
#pragma once

#include <cstdint>
#include <span>

#include "comm/hosts/group/group.hpp"
#include "device/cpu/kernels.hpp"
#include "tutti/dtype.hpp"

namespace tutti {

/** To `data` at member `root`; elsewhere that is undefined afterwards. What this member brings lies
 * there, or `from` elsewhere. */
void reduce_to(const HostGroup& group, int root, void* data, std::int64_t count, DType dtype,
               const cpu::Combine& combine, const void* from = nullptr);
/** In place: afterwards block position() of `data` (element offsets) holds the reduction of that
 * block; the other blocks are undefined. */
void reduce_scatter_v(const HostGroup& group, void* data, std::span<const std::int64_t> offsets,
                      DType dtype, const cpu::Combine& combine);

}  // namespace tutti
