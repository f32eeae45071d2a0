// Element types and non-owning views of memory.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

namespace tutti {

/** The element types that collectives understand; a boolean is a byte, true unless it is 0. */
enum class DType : std::uint8_t {
  f32,
  f64,
  f16,
  bf16,
  i32,
  i64,
  u8,
  i8,
  i16,
  u16,
  u32,
  u64,
  boolean,
};

inline constexpr int kDTypeCount = 13;

/** Bytes of one element. */
constexpr std::int64_t size_of(DType dtype) {
  constexpr std::array<std::int64_t, kDTypeCount> kSizes{4, 8, 2, 2, 4, 8, 1, 1, 2, 2, 4, 8, 1};
  return kSizes[static_cast<std::size_t>(dtype)];
}

/** "f32", "bf16", "i64", ...; "bool" for a boolean. */
constexpr std::string_view name_of(DType dtype) {
  constexpr std::array<std::string_view, kDTypeCount> kNames{
      "f32", "f64", "f16", "bf16", "i32", "i64", "u8", "i8", "i16", "u16", "u32", "u64", "bool"};
  return kNames[static_cast<std::size_t>(dtype)];
}

/** Of 16, 32 or 64 bits. */
constexpr bool is_float(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::f16 || dtype == DType::bf16;
}

/** Of either sign; a boolean is none. */
constexpr bool is_integer(DType dtype) { return !is_float(dtype) && dtype != DType::boolean; }

/** Whether it is an integer that may be negative. */
constexpr bool is_signed_integer(DType dtype) {
  return dtype == DType::i8 || dtype == DType::i16 || dtype == DType::i32 || dtype == DType::i64;
}

/** IEEE 754 binary16: storage only, arithmetic happens in float. */
struct Half {
  std::uint16_t bits = 0;
  friend bool operator==(Half, Half) = default;
};

/** The upper half of a binary32: storage only, arithmetic happens in float. */
struct BFloat16 {
  std::uint16_t bits = 0;
  friend bool operator==(BFloat16, BFloat16) = default;
};

/** Exact. NaN stays NaN (made quiet, with its payload). */
constexpr float to_float(Half value) {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t exponent = (value.bits >> 10U) & 0x1FU;
  const std::uint32_t mantissa = value.bits & 0x3FFU;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24, exact in float
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
  }
  if (exponent == 31) {
    const std::uint32_t quiet = mantissa != 0 ? 0x400000U : 0U;
    return std::bit_cast<float>(sign | 0x7F800000U | (mantissa << 13U) | quiet);
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23U) | (mantissa << 13U));
}

/** Rounds to nearest, ties to even; beyond 65504 becomes infinity. NaN stays NaN. */
constexpr Half to_half(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  std::uint32_t half = 0;
  if (magnitude > 0x7F800000U) {
    half = 0x7E00U | ((magnitude >> 13U) & 0x3FFU);
  } else if (magnitude >= 0x47800000U) {  // 65536 and above, infinity included
    half = 0x7C00U;
  } else if (magnitude < 0x38800000U) {  // below 2^-14: the addition rounds to a multiple of 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    half = std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U;
  } else {
    const std::uint32_t odd = (magnitude >> 13U) & 1U;
    half = (magnitude - 0x38000000U + 0xFFFU + odd) >> 13U;
  }
  return Half{static_cast<std::uint16_t>(sign | half)};
}

/** Exact. */
constexpr float to_float(BFloat16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

/** Rounds to nearest, ties to even. NaN stays NaN. */
constexpr BFloat16 to_bfloat16(float value) {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) {
    return BFloat16{static_cast<std::uint16_t>((bits >> 16U) | 0x40U)};
  }
  return BFloat16{static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U)};
}

/** The DType of a C++ element type. */
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::f32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::f64> {};
template <>
struct DTypeOf<Half> : std::integral_constant<DType, DType::f16> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::bf16> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::i32> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::i64> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::u8> {};
template <>
struct DTypeOf<std::int8_t> : std::integral_constant<DType, DType::i8> {};
template <>
struct DTypeOf<std::int16_t> : std::integral_constant<DType, DType::i16> {};
template <>
struct DTypeOf<std::uint16_t> : std::integral_constant<DType, DType::u16> {};
template <>
struct DTypeOf<std::uint32_t> : std::integral_constant<DType, DType::u32> {};
template <>
struct DTypeOf<std::uint64_t> : std::integral_constant<DType, DType::u64> {};
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::boolean> {};

/** A C++ type of elements that collectives understand: those that have a DType. */
template <class T>
concept Element = requires {
  DTypeOf<T>::value;
};

/** Where memory lives. */
enum class DeviceKind : std::uint8_t { cpu, cuda };

/** The CPU, or one of the GPUs. */
struct Device {
  DeviceKind kind = DeviceKind::cpu;
  int ordinal = 0;  ///< among the devices of this kind that the process sees
  friend bool operator==(Device, Device) = default;
};

/** `count` elements at `data` that somebody else owns and that may be written. */
struct View {
  void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  Device device{};

  View() = default;
  View(void* data_in, std::int64_t count_in, DType dtype_in, Device device_in = {})
      : data(data_in), count(count_in), dtype(dtype_in), device(device_in) {}
  template <Element T>
  View(std::span<T> elements)
      : View(elements.data(), static_cast<std::int64_t>(elements.size()), DTypeOf<T>::value) {}

  std::int64_t bytes() const { return count * size_of(dtype); }
  /** `length` elements from element `offset` on; the caller keeps both inside the view. */
  View part(std::int64_t offset, std::int64_t length) const {
    return {static_cast<std::byte*>(data) + offset * size_of(dtype), length, dtype, device};
  }
};

/** `count` elements at `data` that somebody else owns and that are only read. */
struct ConstView {
  const void* data = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::f32;
  Device device{};

  ConstView() = default;
  ConstView(const void* data_in, std::int64_t count_in, DType dtype_in, Device device_in = {})
      : data(data_in), count(count_in), dtype(dtype_in), device(device_in) {}
  ConstView(const View& view) : ConstView(view.data, view.count, view.dtype, view.device) {}
  template <Element T>
  ConstView(std::span<const T> elements)
      : ConstView(elements.data(), static_cast<std::int64_t>(elements.size()), DTypeOf<T>::value) {}
  template <Element T>
  ConstView(std::span<T> elements) : ConstView(std::span<const T>(elements)) {}

  std::int64_t bytes() const { return count * size_of(dtype); }
  /** `length` elements from element `offset` on; the caller keeps both inside the view. */
  ConstView part(std::int64_t offset, std::int64_t length) const {
    return {static_cast<const std::byte*>(data) + offset * size_of(dtype), length, dtype, device};
  }
};

}  // namespace tutti
