// Four floats in one register: the compiler's vector types, which become SSE, NEON or plain code.
#pragma once

#include <cstdint>
#include <cstring>

namespace mnist {

using Float4 = float __attribute__((vector_size(16)));
using Int4 = std::int32_t __attribute__((vector_size(16)));

/** Loads from, or stores to, any address. */
inline Float4 load4(const float* source) {
  Float4 value;
  std::memcpy(&value, source, sizeof value);
  return value;
}
inline void store4(float* target, Float4 value) { std::memcpy(target, &value, sizeof value); }
inline void store4(std::int32_t* target, Int4 value) { std::memcpy(target, &value, sizeof value); }

}  // namespace mnist
