// The kernels, written once for all instruction sets: kernels_<isa>.cpp compile this text, each
// with its own flags. Read vector.hpp first.
//
// A kernel walks over its arrays in strips of a few vectors. It reads a strip of every input, in
// order, combines them in registers, and writes the result to every output, so that each element
// of memory is touched once however many inputs and outputs there are. A strip is read before it
// is written, which lets an output be an input.
#pragma once

#include <cstdint>
#include <type_traits>

#include "device/cpu/kernel_table.hpp"
#include "device/cpu/mark_impl.hpp"
#include "device/cpu/vector.hpp"
#include "device/cpu/wire_impl.hpp"

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

/** A reduction's arguments in the form in which its strips use them. */
template <class T>
struct Reduction {
  using L = Lane<T>;

  explicit Reduction(const ReduceArguments& arguments)
      : plain_count(arguments.plain_count),
        divisor_value(arguments.divisor),
        scaled(arguments.factor != 1.0),
        divides(arguments.divisor != 1) {
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
        value[lane] = static_cast<L>(static_cast<std::int64_t>(value[lane]) / divisor_value);
      }
      return value;
    }
  }

  const std::int64_t plain_count;
  const std::int64_t divisor_value;
  const bool scaled;
  const bool divides;
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

template <class T, class Op>
void reduce_kernel(const ReduceArguments& arguments) {
  const Reduction<T> reduction(arguments);
  if (arguments.in_count == 2 && arguments.out_count == 1) {
    reduce_all<T, Op, 2, 1>(reduction, arguments);
  } else if (arguments.in_count == 2 && arguments.out_count == 2) {
    reduce_all<T, Op, 2, 2>(reduction, arguments);
  } else {
    reduce_all<T, Op, 0, 0>(reduction, arguments);
  }
}

/** Lines of 64 bytes past the caches; `to` starts one. Returns the bytes copied. */
std::int64_t stream_lines(void* to, const void* from, std::int64_t bytes) {
  constexpr std::int64_t kStep = std::int64_t{kStrip} * kVectorBytes;
  auto* target = static_cast<unsigned char*>(to);
  const auto* source = static_cast<const unsigned char*>(from);
  const std::int64_t whole = bytes / kStep * kStep;
  for (std::int64_t i = 0; i < whole; i += kStep) {
    Words value[kStrip];
    __builtin_memcpy(value, source + i, sizeof(value));
    for (std::size_t v = 0; v < kStrip; ++v) stream(target + i + v * kVectorBytes, value[v]);
  }
  fence_streams();
  return whole;
}

/**
 * Updates `kVectors` vectors from element `i` on. Takes one array after the other: where the
 * addresses of two collide in the way prediction of AMD's first-level cache, alternating between
 * them was measured to take four times as long.
 */
template <unsigned kVectors, class Access>
[[gnu::always_inline]] inline void sgd_strip(float* parameter, const float* gradient,
                                             float* velocity, std::int64_t i, const SgdStep& step,
                                             Access access) {
  const auto at = [i](unsigned v) { return i + v * kLanes<float>; };
  Floats p[kVectors];
  Floats d[kVectors];
  for (unsigned v = 0; v < kVectors; ++v) p[v] = access.load(parameter + at(v));
  for (unsigned v = 0; v < kVectors; ++v) {
    d[v] = access.load(gradient + at(v)) * step.gradient_scale;
    if (step.weight_decay != 0.0F) d[v] = d[v] + p[v] * step.weight_decay;
  }
  if (velocity != nullptr) {
    Floats m[kVectors];
    for (unsigned v = 0; v < kVectors; ++v) {
      m[v] = d[v];
      if (!step.first) {
        m[v] = access.load(velocity + at(v)) * step.momentum + d[v] * (1.0F - step.dampening);
      }
    }
    for (unsigned v = 0; v < kVectors; ++v) {
      access.store(velocity + at(v), m[v]);
      d[v] = step.nesterov ? d[v] + m[v] * step.momentum : m[v];
    }
  }
  for (unsigned v = 0; v < kVectors; ++v) access.store(parameter + at(v), p[v] - d[v] * step.lr);
}

void sgd_kernel(float* parameter, const float* gradient, float* velocity, std::int64_t count,
                const SgdStep& step) {
  const SgdStep local = step;
  std::int64_t i = 0;
  for (; i + kStrip * kLanes<float> <= count; i += kStrip * kLanes<float>) {
    sgd_strip<kStrip>(parameter, gradient, velocity, i, local, Whole());
  }
  for (; i + kLanes<float> <= count; i += kLanes<float>) {
    sgd_strip<1>(parameter, gradient, velocity, i, local, Whole());
  }
  if (i < count) sgd_strip<1>(parameter, gradient, velocity, i, local, Part{count - i});
}

/** In the order of ReduceKind. What makes a sum an average or pre-multiplied is in `Combine`. */
template <class T>
constexpr std::array<KernelTable::ReduceFunction, kReduceKindCount> kReduceKernels{
    reduce_kernel<T, Sum>, reduce_kernel<T, Sum>,     reduce_kernel<T, Min>,
    reduce_kernel<T, Max>, reduce_kernel<T, Product>, reduce_kernel<T, Sum>};

/** In the order of DType. */
constexpr KernelTable kKernels{
    {kReduceKernels<float>, kReduceKernels<double>, kReduceKernels<Half>, kReduceKernels<BFloat16>,
     kReduceKernels<std::int32_t>, kReduceKernels<std::int64_t>, kReduceKernels<std::uint8_t>},
    sgd_kernel,
    mark_kernel,
    {narrow_kernel<Half>, narrow_kernel<BFloat16>},
    {widen_kernel<Half>, widen_kernel<BFloat16>},
    accumulate_kernel,
    squared_norm_kernel,
    stream_lines};

}  // namespace
}  // namespace tutti::cpu
