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

/** An operation prepares every input, combines two, and finishes vectors of results. */
template <class T>
struct Operation {
  using Element = T;
  using V = Vector<Lane<T>>;

  explicit Operation(const ReduceArguments& /*arguments*/) {}
  V prepare(V value) const { return value; }
  template <unsigned kCount>
  void finish(V (&/*results*/)[kCount]) const {}
};

/** Divides in 64 bits, since the divisor may not fit. No instruction set divides integers. */
template <class L, class Wide>
void divide_lanes(Vector<L>* values, unsigned count, Wide divisor) {
  using Element = std::conditional_t<std::is_signed_v<Wide>, std::make_signed_t<L>, L>;
  for (unsigned v = 0; v < count; ++v) {
    for (std::int64_t lane = 0; lane < kLanes<L>; ++lane) {
      const Wide element = static_cast<Element>(values[v][lane]);
      values[v][lane] = static_cast<L>(element / divisor);
    }
  }
}

/** Apart from the loops over elements, which it would make many times as long to compile. */
template <class L>
[[gnu::noinline]] void divide_integers(Vector<L>* values, unsigned count, std::int64_t divisor,
                                       bool is_signed) {
  if (is_signed) {
    divide_lanes<L>(values, count, divisor);
  } else {
    divide_lanes<L>(values, count, static_cast<std::uint64_t>(divisor));
  }
}

/** A sum of `factor` times every input, divided by `divisor`. */
template <class T>
struct Sum {
  using Element = T;
  using L = Lane<T>;
  using V = Vector<L>;
  static constexpr bool kIsFloat = std::is_floating_point_v<L>;

  explicit Sum(const ReduceArguments& arguments)
      : divisor_value(arguments.divisor),
        scaled(arguments.factor != 1.0),
        divides(arguments.divisor != 1),
        is_signed(arguments.is_signed) {
    if constexpr (kIsFloat) {
      factor = broadcast(static_cast<L>(arguments.factor));
      // Dividing by a power of two is multiplying by its inverse, to the bit.
      has_inverse = (arguments.divisor & (arguments.divisor - 1)) == 0;
      const L exact = static_cast<L>(arguments.divisor);
      divisor = broadcast(has_inverse ? L{1} / exact : exact);
    } else {
      factor = broadcast(static_cast<L>(static_cast<std::int64_t>(arguments.factor)));
    }
  }

  V prepare(V value) const { return scaled ? value * factor : value; }
  V combine(V a, V b) const { return a + b; }
  template <unsigned kCount>
  [[gnu::always_inline]] void finish(V (&results)[kCount]) const {
    if (!divides) return;
    if constexpr (kIsFloat) {
      for (V& result : results) result = has_inverse ? result * divisor : result / divisor;
    } else {
      V copies[kCount];  // so that results may stay in registers where nothing is divided
      for (unsigned v = 0; v < kCount; ++v) copies[v] = results[v];
      divide_integers<L>(copies, kCount, divisor_value, is_signed);
      for (unsigned v = 0; v < kCount; ++v) results[v] = copies[v];
    }
  }

  const std::int64_t divisor_value;
  const bool scaled;
  const bool divides;
  const bool is_signed;
  bool has_inverse = false;
  V factor{};
  V divisor{};
};

template <class T>
struct Product : Operation<T> {
  using Operation<T>::Operation;
  using V = typename Operation<T>::V;
  V combine(V a, V b) const { return a * b; }
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

template <class T>
struct Min : Operation<T> {
  using Operation<T>::Operation;
  using V = typename Operation<T>::V;
  V combine(V a, V b) const { return keep_nan<Lane<T>>(a, a < b ? a : b); }
};

template <class T>
struct Max : Operation<T> {
  using Operation<T>::Operation;
  using V = typename Operation<T>::V;
  V combine(V a, V b) const { return keep_nan<Lane<T>>(a, a > b ? a : b); }
};

template <class T>
struct And : Operation<T> {
  using Operation<T>::Operation;
  using V = typename Operation<T>::V;
  V combine(V a, V b) const { return a & b; }
};

template <class T>
struct Or : Operation<T> {
  using Operation<T>::Operation;
  using V = typename Operation<T>::V;
  V combine(V a, V b) const { return a | b; }
};

template <class T>
struct Xor : Operation<T> {
  using Operation<T>::Operation;
  using V = typename Operation<T>::V;
  V combine(V a, V b) const { return a ^ b; }
};

/** `Bits` on truth values: 1 for what is not 0. */
template <class Bits>
struct Logical : Bits {
  using Bits::Bits;
  using V = typename Bits::V;
  V prepare(V value) const {
    using L = typename Bits::Element;
    return reinterpret_cast<V>(value != L{0}) & L{1};
  }
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

/**
 * Combines `kVectors` vectors of every input from element `i` on. Outputs from `plain_count` on are
 * written as `others` does.
 */
template <unsigned kVectors, class Op, class From, class Access, class Others>
[[gnu::always_inline]] inline void reduce_strip(const Op& op, const From& operands, std::int64_t i,
                                                std::int64_t plain_count, Access access,
                                                Others others) {
  using T = typename Op::Element;
  using L = Lane<T>;
  const auto read = [&](std::int64_t input, unsigned v) {
    return op.prepare(access.load(operands.in(input) + i + v * kLanes<T>));
  };

  Vector<L> result[kVectors];
  for (unsigned v = 0; v < kVectors; ++v) result[v] = read(0, v);
  for (std::int64_t input = 1; input < operands.in_count(); ++input) {
    for (unsigned v = 0; v < kVectors; ++v) result[v] = op.combine(result[v], read(input, v));
  }
  op.finish(result);
  for (unsigned v = 0; v < kVectors; ++v) result[v] = canonical<L>(result[v]);
  for (std::int64_t output = 0; output < operands.out_count(); ++output) {
    T* to = operands.out(output) + i;
    if (output < plain_count) {
      for (unsigned v = 0; v < kVectors; ++v) access.store(to + v * kLanes<T>, result[v]);
    } else {
      for (unsigned v = 0; v < kVectors; ++v) others.store(to + v * kLanes<T>, result[v]);
    }
  }
}

template <class Op, unsigned kIns, unsigned kOuts>
void reduce_all(const Op& op, const ReduceArguments& arguments) {
  using T = typename Op::Element;
  const Operands<T, kIns, kOuts> operands(arguments);
  const std::int64_t count = arguments.count;
  const std::int64_t plain_count = arguments.plain_count;
  std::int64_t i = 0;
  for (; i + kStrip * kLanes<T> <= count; i += kStrip * kLanes<T>) {
    reduce_strip<kStrip>(op, operands, i, plain_count, Whole(), Streamed());
  }
  if (plain_count < operands.out_count()) fence_streams();
  for (; i + kLanes<T> <= count; i += kLanes<T>) {
    reduce_strip<1>(op, operands, i, arguments.out_count, Whole(), Whole());
  }
  if (i < count) {
    const Part part{count - i};
    reduce_strip<1>(op, operands, i, arguments.out_count, part, part);
  }
}

/** The elements are unsigned where they are integers, but for the minimum and the maximum. */
template <class Op>
void reduce_kernel(const ReduceArguments& arguments) {
  using T = typename Op::Element;
  const Op op(arguments);
  // Operands in registers save a fifth of the time in caches, but each such body takes long to
  // compile: for floats and sums alone.
  if constexpr (std::is_floating_point_v<Lane<T>> || std::is_same_v<Op, Sum<T>>) {
    if (arguments.in_count == 2 && arguments.out_count == 1) {
      return reduce_all<Op, 2, 1>(op, arguments);
    }
    if (arguments.in_count == 2 && arguments.out_count == 2) {
      return reduce_all<Op, 2, 2>(op, arguments);
    }
  }
  reduce_all<Op, 0, 0>(op, arguments);
}

/** Bits know no elements: those of elements of `kBytes` bytes are combined as bytes. */
template <std::size_t kBytes, class Op>
void bits_kernel(const ReduceArguments& arguments) {
  ReduceArguments bytes = arguments;
  bytes.count *= static_cast<std::int64_t>(kBytes);
  reduce_kernel<Op>(bytes);
}

using Byte = std::uint8_t;
using ReduceKernels = std::array<KernelTable::ReduceFunction, kReduceKindCount>;

// All in the order of ReduceKind; null where a dtype has no such reduction. What makes a sum an
// average or pre-multiplied is in `Combine`.

template <class T>
constexpr ReduceKernels kFloatKernels{reduce_kernel<Sum<T>>,     reduce_kernel<Sum<T>>,
                                      reduce_kernel<Min<T>>,     reduce_kernel<Max<T>>,
                                      reduce_kernel<Product<T>>, reduce_kernel<Sum<T>>};

/** Integers wrap around, so that their sums and products have the same bits signed or not. */
template <class T, class U = std::make_unsigned_t<T>>
constexpr ReduceKernels kIntegerKernels{reduce_kernel<Sum<U>>,
                                        reduce_kernel<Sum<U>>,
                                        reduce_kernel<Min<T>>,
                                        reduce_kernel<Max<T>>,
                                        reduce_kernel<Product<U>>,
                                        reduce_kernel<Sum<U>>,
                                        bits_kernel<sizeof(T), And<Byte>>,
                                        bits_kernel<sizeof(T), Or<Byte>>,
                                        bits_kernel<sizeof(T), Xor<Byte>>,
                                        reduce_kernel<Logical<And<U>>>,
                                        reduce_kernel<Logical<Or<U>>>,
                                        reduce_kernel<Logical<Xor<U>>>};

/** A boolean is true or false whatever is done with it. */
constexpr KernelTable::ReduceFunction kAllTrue = reduce_kernel<Logical<And<Byte>>>;
constexpr KernelTable::ReduceFunction kAnyTrue = reduce_kernel<Logical<Or<Byte>>>;
constexpr KernelTable::ReduceFunction kOddTrue = reduce_kernel<Logical<Xor<Byte>>>;
constexpr ReduceKernels kBooleanKernels{nullptr,  nullptr,  kAllTrue, kAnyTrue, nullptr,  nullptr,
                                        kAllTrue, kAnyTrue, kOddTrue, kAllTrue, kAnyTrue, kOddTrue};

}  // namespace
}  // namespace tutti::cpu
