// Adam and Adagrad, as part of kernels_impl.hpp: compiled once for each instruction set. The
// formulas of elementwise.hpp are templates over vectors, of which each instruction set has a type
// of its own.
#pragma once

#include <cstdint>

#include "device/cpu/vector.hpp"
#include "device/elementwise.hpp"
#include "device/pieces.hpp"

namespace tutti::cpu {
namespace {

/** Updates `kVectors` vectors from element `i` on, one array after the other (see sgd_strip()). */
template <unsigned kVectors, class Access>
[[gnu::always_inline]] inline void adam_strip(const AdamPiece& piece, std::int64_t i,
                                              const AdamStep& step, Access access) {
  const auto at = [i](unsigned v) { return i + v * kLanes<float>; };
  AdamElement<Floats> element[kVectors];
  Floats g[kVectors];
  for (unsigned v = 0; v < kVectors; ++v) {
    element[v].parameter = access.load(piece.parameter + at(v));
  }
  for (unsigned v = 0; v < kVectors; ++v) g[v] = access.load(piece.gradient + at(v));
  for (unsigned v = 0; v < kVectors; ++v) element[v].first = access.load(piece.first + at(v));
  for (unsigned v = 0; v < kVectors; ++v) element[v].second = access.load(piece.second + at(v));
  for (unsigned v = 0; v < kVectors; ++v) {
    element[v] = adam_moments(element[v], g[v], step);
    element[v].parameter = adam_parameter(element[v], square_root(element[v].second), step);
  }
  for (unsigned v = 0; v < kVectors; ++v) access.store(piece.first + at(v), element[v].first);
  for (unsigned v = 0; v < kVectors; ++v) access.store(piece.second + at(v), element[v].second);
  for (unsigned v = 0; v < kVectors; ++v) {
    access.store(piece.parameter + at(v), element[v].parameter);
  }
}

template <unsigned kVectors, class Access>
[[gnu::always_inline]] inline void adagrad_strip(const AdagradPiece& piece, std::int64_t i,
                                                 const AdagradStep& step, Access access) {
  const auto at = [i](unsigned v) { return i + v * kLanes<float>; };
  Floats p[kVectors];
  Floats g[kVectors];
  Floats sum[kVectors];
  for (unsigned v = 0; v < kVectors; ++v) p[v] = access.load(piece.parameter + at(v));
  for (unsigned v = 0; v < kVectors; ++v) g[v] = access.load(piece.gradient + at(v));
  for (unsigned v = 0; v < kVectors; ++v) sum[v] = access.load(piece.sum + at(v));
  for (unsigned v = 0; v < kVectors; ++v) {
    g[v] = decayed_gradient(g[v], p[v], step.gradient_scale, step.weight_decay);
    sum[v] = sum[v] + g[v] * g[v];
    p[v] = adagrad_parameter(p[v], g[v], square_root(sum[v]), step);
  }
  for (unsigned v = 0; v < kVectors; ++v) access.store(piece.sum + at(v), sum[v]);
  for (unsigned v = 0; v < kVectors; ++v) access.store(piece.parameter + at(v), p[v]);
}

void adam_kernel(const AdamPiece& piece, const AdamStep& step) {
  const AdamPiece local = piece;
  const AdamStep how = step;
  std::int64_t i = 0;
  for (; i + kStrip * kLanes<float> <= local.count; i += kStrip * kLanes<float>) {
    adam_strip<kStrip>(local, i, how, Whole());
  }
  for (; i + kLanes<float> <= local.count; i += kLanes<float>) {
    adam_strip<1>(local, i, how, Whole());
  }
  if (i < local.count) adam_strip<1>(local, i, how, Part{local.count - i});
}

void adagrad_kernel(const AdagradPiece& piece, const AdagradStep& step) {
  const AdagradPiece local = piece;
  const AdagradStep how = step;
  std::int64_t i = 0;
  for (; i + kStrip * kLanes<float> <= local.count; i += kStrip * kLanes<float>) {
    adagrad_strip<kStrip>(local, i, how, Whole());
  }
  for (; i + kLanes<float> <= local.count; i += kLanes<float>) {
    adagrad_strip<1>(local, i, how, Whole());
  }
  if (i < local.count) adagrad_strip<1>(local, i, how, Part{local.count - i});
}

}  // namespace
}  // namespace tutti::cpu
