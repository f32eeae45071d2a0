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

#include "communicator/cpu/kernel_table.hpp"
#include "communicator/cpu/mark_impl.hpp"
#include "communicator/cpu/vector.hpp"
#include "communicator/cpu/wire_impl.hpp"

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

  explicit Reduction(const ReduceArguments& arguments_in)
      : arguments(arguments_in), scaled(arguments_in.factor != 1.0) {
    if constexpr (std::is_floating_point_v<L>) {
      factor = broadcast(static_cast<L>(arguments.factor));
      // Dividing by a power of two is multiplying by its inverse, to the bit.
      has_inverse = (arguments.divisor & (arguments.divisor - 1)) == 0;
      const L divisor_value = static_cast<L>(arguments.divisor);
      divisor = broadcast(has_inverse ? L{1} / divisor_value : divisor_value);
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
        value[lane] = static_cast<L>(static_cast<std::int64_t>(value[lane]) / arguments.divisor);
      }
      return value;
    }
  }

  const ReduceArguments arguments;
  const bool scaled;
  bool has_inverse = false;
  Vector<L> factor{};
  Vector<L> divisor{};
};

/** Combines `kVectors` vectors of every input from element `i` on. Outputs beyond the plain ones
 * are written as `others` does. */
template <class T, class Op, unsigned kVectors, class Access, class Others>
[[gnu::always_inline]] inline void reduce_strip(const Reduction<T>& reduction, std::int64_t i,
                                                Access access, Others others) {
  using L = Lane<T>;
  const ReduceArguments& arguments = reduction.arguments;
  const auto read = [&](std::int64_t input, unsigned v) {
    const T* from = static_cast<const T*>(arguments.ins[input]) + i + v * kLanes<T>;
    const Vector<L> value = access.load(from);
    return reduction.scaled ? Product::apply<L>(value, reduction.factor) : value;
  };

  Vector<L> result[kVectors];
  for (unsigned v = 0; v < kVectors; ++v) result[v] = read(0, v);
  for (std::int64_t input = 1; input < arguments.in_count; ++input) {
    for (unsigned v = 0; v < kVectors; ++v) {
      result[v] = Op::template apply<L>(result[v], read(input, v));
    }
  }
  if (arguments.divisor != 1) {
    for (unsigned v = 0; v < kVectors; ++v) result[v] = reduction.divide(result[v]);
  }
  for (unsigned v = 0; v < kVectors; ++v) result[v] = canonical<L>(result[v]);
  const auto write = [&](std::int64_t output, auto way) {
    T* to = static_cast<T*>(arguments.outs[output]) + i;
    for (unsigned v = 0; v < kVectors; ++v) way.store(to + v * kLanes<T>, result[v]);
  };
  for (std::int64_t output = 0; output < arguments.plain_count; ++output) write(output, access);
  for (std::int64_t output = arguments.plain_count; output < arguments.out_count; ++output) {
    write(output, others);
  }
}

template <class T, class Op>
void reduce_kernel(const ReduceArguments& arguments) {
  const Reduction<T> reduction(arguments);
  const std::int64_t count = arguments.count;
  std::int64_t i = 0;
  if (arguments.plain_count < arguments.out_count) {
    for (; i + kStrip * kLanes<T> <= count; i += kStrip * kLanes<T>) {
      reduce_strip<T, Op, kStrip>(reduction, i, Whole(), Streamed());
    }
    fence_streams();
  } else {
    for (; i + kStrip * kLanes<T> <= count; i += kStrip * kLanes<T>) {
      reduce_strip<T, Op, kStrip>(reduction, i, Whole(), Whole());
    }
  }
  for (; i + kLanes<T> <= count; i += kLanes<T>) {
    reduce_strip<T, Op, 1>(reduction, i, Whole(), Whole());
  }
  if (i < count) {
    const Part part{count - i};
    reduce_strip<T, Op, 1>(reduction, i, part, part);
  }
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
    squared_norm_kernel};

}  // namespace
}  // namespace tutti::cpu
