// The reductions of every element type; part of kernels_impl.hpp.
//
// A kernel walks over its arrays in strips of a few vectors. It reads a strip of every input, in
// order, combines them in registers, and writes the result to every output, so that each element
// of memory is touched once however many inputs and outputs there are. A strip is read before it
// is written, which lets an output be an input.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "device/cpu/kernel_table.hpp"
#include "device/cpu/vector.hpp"

namespace tutti::cpu {
namespace {

// The lanes' values are taken as unsigned where signed arithmetic might overflow.
template <class L, class = void>
struct WrappingOf {
  using Type = L;
};
template <class L>
struct WrappingOf<L, std::enable_if_t<std::is_integral_v<L>>> {
  using Type = std::make_unsigned_t<L>;
};
template <class L>
using Wrapping = Vector<typename WrappingOf<L>::Type>;

struct Sum {
  template <class L>
  static Vector<L> apply(Vector<L> a, Vector<L> b) {
    return reinterpret_cast<Vector<L>>(reinterpret_cast<Wrapping<L>>(a) +
                                       reinterpret_cast<Wrapping<L>>(b));
  }
};

struct Product {
  template <class L>
  static Vector<L> apply(Vector<L> a, Vector<L> b) {
    return reinterpret_cast<Vector<L>>(reinterpret_cast<Wrapping<L>>(a) *
                                       reinterpret_cast<Wrapping<L>>(b));
  }
};

/** `best`, unless `a` is NaN. (A NaN in b loses no comparison of Min and Max, and stays.) */
template <class L>
Vector<L> keep_nan(Vector<L> a, Vector<L> best) {
  if constexpr (std::is_floating_point_v<L>) {
    return a == a ? best : a;
  } else {
    return best;
  }
}

struct Min {
  template <class L>
  static Vector<L> apply(Vector<L> a, Vector<L> b) {
    return keep_nan<L>(a, a < b ? a : b);
  }
};

struct Max {
  template <class L>
  static Vector<L> apply(Vector<L> a, Vector<L> b) {
    return keep_nan<L>(a, a > b ? a : b);
  }
};

struct And {
  template <class L>
  static Vector<L> apply(Vector<L> a, Vector<L> b) {
    return a & b;
  }
};

struct Or {
  template <class L>
  static Vector<L> apply(Vector<L> a, Vector<L> b) {
    return a | b;
  }
};

struct Xor {
  template <class L>
  static Vector<L> apply(Vector<L> a, Vector<L> b) {
    return a ^ b;
  }
};

/** `Bits` on truth values: 1 for what is not 0. */
template <class Bits>
struct Logical : Bits {};

template <class Op>
constexpr bool kTakesTruth = false;
template <class Bits>
constexpr bool kTakesTruth<Logical<Bits>> = true;

template <class L>
Vector<L> truth(Vector<L> value) {
  return reinterpret_cast<Vector<L>>(value != L{0}) & L{1};
}

/** A reduction's arguments in the form in which its strips use them. */
template <class T>
struct Reduction {
  using L = Lane<T>;

  explicit Reduction(const ReduceArguments& arguments)
      : plain_count(arguments.plain_count),
        divisor_value(arguments.divisor),
        scaled(arguments.factor != 1.0),
        divides(arguments.divisor != 1),
        is_signed(arguments.is_signed) {
    if constexpr (std::is_floating_point_v<L>) {
      factor = broadcast(static_cast<L>(arguments.factor));
      // Dividing by a power of two is multiplying by its inverse, to the bit.
      has_inverse = (arguments.divisor & (arguments.divisor - 1)) == 0;
      const L exact = static_cast<L>(arguments.divisor);
      divisor = broadcast(has_inverse ? L{1} / exact : exact);
    } else {
      factor = broadcast(static_cast<L>(static_cast<std::int64_t>(arguments.factor)));
    }
  }

  Vector<L> divide(Vector<L> value) const {
    if constexpr (std::is_floating_point_v<L>) {
      return has_inverse ? value * divisor : value / divisor;
    } else {
      // In 64 bits: the divisor may not fit the element. No instruction set divides integers.
      for (std::int64_t lane = 0; lane < kLanes<L>; ++lane) {
        if (is_signed) {
          const auto element = static_cast<std::make_signed_t<L>>(value[lane]);
          value[lane] = static_cast<L>(static_cast<std::int64_t>(element) / divisor_value);
        } else {
          const auto divisor_bits = static_cast<std::uint64_t>(divisor_value);
          value[lane] = static_cast<L>(static_cast<std::uint64_t>(value[lane]) / divisor_bits);
        }
      }
      return value;
    }
  }

  const std::int64_t plain_count;
  const std::int64_t divisor_value;
  const bool scaled;
  const bool divides;
  const bool is_signed;
  bool has_inverse = false;
  Vector<L> factor{};
  Vector<L> divisor{};
};

/** Where a reduction reads and writes. Few operands are kept in registers. */
template <class T, unsigned kIns, unsigned kOuts>
struct Operands {
  explicit Operands(const ReduceArguments& arguments) {
    for (unsigned i = 0; i < kIns; ++i) ins[i] = static_cast<const T*>(arguments.ins[i]);
    for (unsigned i = 0; i < kOuts; ++i) outs[i] = static_cast<T*>(arguments.outs[i]);
  }
  static constexpr std::int64_t in_count() { return kIns; }
  static constexpr std::int64_t out_count() { return kOuts; }
  const T* in(std::int64_t i) const { return ins[i]; }
  T* out(std::int64_t i) const { return outs[i]; }

  const T* ins[kIns];
  T* outs[kOuts];
};

/** Any number of them. */
template <class T>
struct Operands<T, 0, 0> {
  explicit Operands(const ReduceArguments& arguments_in) : arguments(arguments_in) {}
  std::int64_t in_count() const { return arguments.in_count; }
  std::int64_t out_count() const { return arguments.out_count; }
  const T* in(std::int64_t i) const { return static_cast<const T*>(arguments.ins[i]); }
  T* out(std::int64_t i) const { return static_cast<T*>(arguments.outs[i]); }

  const ReduceArguments& arguments;
};

/** Combines `kVectors` vectors of every input from element `i` on. Outputs from `plain_count` on
 * are written as `others` does. */
template <class T, class Op, unsigned kVectors, class From, class Access, class Others>
[[gnu::always_inline]] inline void reduce_strip(const Reduction<T>& reduction, const From& operands,
                                                std::int64_t i, Access access, Others others) {
  using L = Lane<T>;
  const auto read = [&](std::int64_t input, unsigned v) {
    const Vector<L> value = access.load(operands.in(input) + i + v * kLanes<T>);
    if constexpr (kTakesTruth<Op>) return truth<L>(value);
    return reduction.scaled ? Product::apply<L>(value, reduction.factor) : value;
  };

  Vector<L> result[kVectors];
  for (unsigned v = 0; v < kVectors; ++v) result[v] = read(0, v);
  for (std::int64_t input = 1; input < operands.in_count(); ++input) {
    for (unsigned v = 0; v < kVectors; ++v) {
      result[v] = Op::template apply<L>(result[v], read(input, v));
    }
  }
  if (reduction.divides) {
    for (unsigned v = 0; v < kVectors; ++v) result[v] = reduction.divide(result[v]);
  }
  for (unsigned v = 0; v < kVectors; ++v) result[v] = canonical<L>(result[v]);
  for (std::int64_t output = 0; output < operands.out_count(); ++output) {
    T* to = operands.out(output) + i;
    if (output < reduction.plain_count) {
      for (unsigned v = 0; v < kVectors; ++v) access.store(to + v * kLanes<T>, result[v]);
    } else {
      for (unsigned v = 0; v < kVectors; ++v) others.store(to + v * kLanes<T>, result[v]);
    }
  }
}

template <class T, class Op, unsigned kIns, unsigned kOuts>
void reduce_all(const Reduction<T>& reduction, const ReduceArguments& arguments) {
  const Operands<T, kIns, kOuts> operands(arguments);
  const std::int64_t count = arguments.count;
  std::int64_t i = 0;
  if (arguments.plain_count < arguments.out_count) {
    for (; i + kStrip * kLanes<T> <= count; i += kStrip * kLanes<T>) {
      reduce_strip<T, Op, kStrip>(reduction, operands, i, Whole(), Streamed());
    }
    fence_streams();
  } else {
    for (; i + kStrip * kLanes<T> <= count; i += kStrip * kLanes<T>) {
      reduce_strip<T, Op, kStrip>(reduction, operands, i, Whole(), Whole());
    }
  }
  for (; i + kLanes<T> <= count; i += kLanes<T>) {
    reduce_strip<T, Op, 1>(reduction, operands, i, Whole(), Whole());
  }
  if (i < count) {
    const Part part{count - i};
    reduce_strip<T, Op, 1>(reduction, operands, i, part, part);
  }
}

/** `T` is unsigned where it is an integer, but for the minimum and the maximum. */
template <class T, class Op>
void reduce_kernel(const ReduceArguments& arguments) {
  const Reduction<T> reduction(arguments);
  // Operands in registers save a fifth of the time in caches, but each such body takes long to
  // compile: for floats and sums alone.
  if constexpr (std::is_floating_point_v<Lane<T>> || std::is_same_v<Op, Sum>) {
    if (arguments.in_count == 2 && arguments.out_count == 1) {
      return reduce_all<T, Op, 2, 1>(reduction, arguments);
    }
    if (arguments.in_count == 2 && arguments.out_count == 2) {
      return reduce_all<T, Op, 2, 2>(reduction, arguments);
    }
  }
  reduce_all<T, Op, 0, 0>(reduction, arguments);
}

/** Bits know no elements: those of elements of `kBytes` bytes are combined as bytes. */
template <std::size_t kBytes, class Op>
void bits_kernel(const ReduceArguments& arguments) {
  ReduceArguments bytes = arguments;
  bytes.count *= static_cast<std::int64_t>(kBytes);
  reduce_kernel<std::uint8_t, Op>(bytes);
}

using ReduceKernels = std::array<KernelTable::ReduceFunction, kReduceKindCount>;

// All in the order of ReduceKind; null where a dtype has no such reduction. What makes a sum an
// average or pre-multiplied is in `Combine`.

template <class T>
constexpr ReduceKernels kFloatKernels{reduce_kernel<T, Sum>,     reduce_kernel<T, Sum>,
                                      reduce_kernel<T, Min>,     reduce_kernel<T, Max>,
                                      reduce_kernel<T, Product>, reduce_kernel<T, Sum>};

/** Integers wrap around, so that their sums and products have the same bits signed or not. */
template <class T, class U = std::make_unsigned_t<T>>
constexpr ReduceKernels kIntegerKernels{
    reduce_kernel<U, Sum>,          reduce_kernel<U, Sum>,         reduce_kernel<T, Min>,
    reduce_kernel<T, Max>,          reduce_kernel<U, Product>,     reduce_kernel<U, Sum>,
    bits_kernel<sizeof(T), And>,    bits_kernel<sizeof(T), Or>,    bits_kernel<sizeof(T), Xor>,
    reduce_kernel<U, Logical<And>>, reduce_kernel<U, Logical<Or>>, reduce_kernel<U, Logical<Xor>>};

/** A boolean is true or false whatever is done with it. */
constexpr KernelTable::ReduceFunction kAllTrue = reduce_kernel<std::uint8_t, Logical<And>>;
constexpr KernelTable::ReduceFunction kAnyTrue = reduce_kernel<std::uint8_t, Logical<Or>>;
constexpr KernelTable::ReduceFunction kOddTrue = reduce_kernel<std::uint8_t, Logical<Xor>>;
constexpr ReduceKernels kBooleanKernels{nullptr,  nullptr,  kAllTrue, kAnyTrue, nullptr,  nullptr,
                                        kAllTrue, kAnyTrue, kOddTrue, kAllTrue, kAnyTrue, kOddTrue};

}  // namespace
}  // namespace tutti::cpu
