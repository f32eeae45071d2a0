// Element types and reductions as NCCL's.
#include "comm/nccl/types.hpp"

#include <bit>
#include <cstring>

namespace tutti::nccl {

ncclDataType_t type_of(DType dtype) {
  constexpr std::array<ncclDataType_t, kDTypeCount> kTypes{
      ncclFloat32, ncclFloat64, ncclFloat16, ncclBfloat16, ncclInt32,  ncclInt64, ncclUint8,
      ncclInt8,    ncclFloat16, ncclFloat16, ncclUint32,   ncclUint64, ncclUint8};
  return kTypes[static_cast<std::size_t>(dtype)];
}

ncclRedOp_t operator_of(ReduceKind kind, DType dtype) {
  switch (kind) {
    case ReduceKind::average:
      return ncclAvg;
    case ReduceKind::min:
      return ncclMin;
    case ReduceKind::max:
      return ncclMax;
    case ReduceKind::product:
      return ncclProd;
    default:
      break;
  }
  if (dtype != DType::boolean) return ncclSum;
  return kind == ReduceKind::band || kind == ReduceKind::land ? ncclMin : ncclMax;
}

std::array<std::byte, 8> scalar_of(DType dtype, double factor) {
  std::array<std::byte, 8> bytes{};
  const auto put = [&](auto value) { std::memcpy(bytes.data(), &value, sizeof(value)); };
  if (dtype == DType::f32) {
    put(static_cast<float>(factor));
  } else if (dtype == DType::f64) {
    put(factor);
  } else if (dtype == DType::f16) {
    put(to_half(static_cast<float>(factor)));
  } else if (dtype == DType::bf16) {
    put(to_bfloat16(static_cast<float>(factor)));
  } else {
    // Of integers the lower bytes, since their arithmetic wraps around.
    static_assert(std::endian::native == std::endian::little);
    put(static_cast<std::int64_t>(factor));
  }
  return bytes;
}

}  // namespace tutti::nccl
