// What NCCL calls element types and reductions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "comm/nccl/library.hpp"
#include "tutti/dtype.hpp"
#include "tutti/reduce.hpp"

namespace tutti::nccl {

/** The type that elements travel as. NCCL has no integers of 16 bits: f16's bits travel as well. */
ncclDataType_t type_of(DType dtype);

/** Communicator refuses what NCCL cannot do; premul_sum has no operator of its own. */
ncclRedOp_t operator_of(ReduceKind kind, DType dtype);

/** `factor` as an element of `dtype`. */
std::array<std::byte, 8> scalar_of(DType dtype, double factor);

}  // namespace tutti::nccl
