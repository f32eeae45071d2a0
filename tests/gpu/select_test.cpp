// Selection on the GPU beside the CPU's.
#include "tutti/select.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>

#include "device/cuda/kernels.hpp"
#include "device/cuda/sample_place.hpp"
#include "gpu/gpu_test.hpp"
#include "support/floats.hpp"

namespace tutti::cuda {
namespace {

enum class Shape { normal, heavy, constant, zero, denormal, few_values, not_finite };
constexpr Shape kShapes[]{Shape::normal,   Shape::heavy,      Shape::constant,  Shape::zero,
                          Shape::denormal, Shape::few_values, Shape::not_finite};

std::vector<float> make(Shape shape, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  std::uint32_t state = 12345;
  const auto unit = [&] {
    state = state * 1664525U + 1013904223U;
    return static_cast<float>(state >> 8U) / 16777216.0F - 0.5F;
  };
  for (float& value : values) {
    const float x = unit();
    switch (shape) {
      case Shape::normal:
        value = x + unit() + unit() + unit();
        break;
      case Shape::heavy:
        value = std::ldexp(x, static_cast<int>(30.0F * unit()));
        break;
      case Shape::constant:
        value = -2.0F;
        break;
      case Shape::zero:
        value = 0.0F;
        break;
      case Shape::denormal:
        value = x * 1e-39F;
        break;
      case Shape::few_values:
        value = std::floor(x * 6.0F);
        break;
      case Shape::not_finite:
        value = x > 0.49F ? kInf : x < -0.49F ? std::nanf("") : x;
        break;
    }
  }
  return values;
}

class GpuSelect : public test::KernelTest {
 protected:
  /** `offset` moves the gradient off its alignment; the residual is aligned. */
  template <class OnCpu, class OnGpu>
  void compare(const std::vector<float>& gradient, std::int64_t offset, bool with_residual,
               const OnCpu& on_cpu, const OnGpu& on_gpu) {
    const auto count = static_cast<std::int64_t>(gradient.size());
    std::vector<float> residual(with_residual ? gradient.size() : 0, 0.25F);
    const auto g = to_gpu(gradient, offset);
    const auto r = to_gpu(residual);
    const auto indices = room<std::uint32_t>(count);
    const auto values = room<float>(count);
    const auto found = to_gpu(std::vector<std::uint32_t>{77});
    run([&] {
      on_gpu(g.data, with_residual ? r.data : nullptr,
             Selected{indices.data, values.data, found.data, static_cast<std::uint32_t>(count)});
    });
    const SparseView expected = on_cpu(std::span<const float>(gradient),
                                       with_residual ? View(std::span<float>(residual)) : View());
    ASSERT_EQ(from_gpu(found)[0], static_cast<std::uint32_t>(expected.count));
    const std::vector<std::uint32_t> got_indices = from_gpu(indices);
    const std::vector<float> got_values = from_gpu(values);
    for (std::int64_t i = 0; i < expected.count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(got_indices[at], expected.indices[i]) << i;
      ASSERT_TRUE(got_values[at] == expected.values[i] ||
                  (std::isnan(got_values[at]) && std::isnan(expected.values[i])))
          << i;
    }
    EXPECT_EQ(from_gpu(r), residual);
  }

  void compare_top_k(Shape shape, std::int64_t count) {
    compare_top_k(shape, count, {0, 1, count / 1000, count / 100, count / 2, count});
  }

  void compare_top_k(Shape shape, std::int64_t count, std::initializer_list<std::int64_t> ks) {
    const std::vector<float> gradient = make(shape, count);
    for (const std::int64_t k : ks) {
      for (const bool with_residual : {false, true}) {
        const std::int64_t offset = with_residual ? 0 : 1;
        SCOPED_TRACE("shape " + std::to_string(static_cast<int>(shape)) + ", " + std::to_string(k) +
                     " of " + std::to_string(count));
        Selector selector;
        compare(
            gradient, offset, with_residual,
            [&](ConstView g, View r) { return selector.top_k(g, k, r); },
            [&](const float* g, float* r, const Selected& selected) {
              select_top_k(g, r, count, k, selected, scratch_);
            });
      }
    }
  }

  /** Where the sample looks, elements are larger than elsewhere, or smaller. */
  void compare_misled(std::int64_t count) {
    for (const float sampled : {0.5F, 100.0F}) {
      std::vector<float> gradient = make(Shape::normal, count);
      for (float& value : gradient) value = 2.0F + value;
      for (std::int64_t i = 0; i < kSample; ++i) {
        gradient[static_cast<std::size_t>(sample_place(i, count))] *= sampled;
      }
      for (const std::int64_t k : {count / 100, count / 20, count / 2}) {
        SCOPED_TRACE(std::to_string(k) + ", sampled ones times " + std::to_string(sampled));
        for (const bool with_residual : {false, true}) {
          Selector selector;
          compare(
              gradient, 0, with_residual,
              [&](ConstView g, View r) { return selector.top_k(g, k, r); },
              [&](const float* g, float* r, const Selected& selected) {
                select_top_k(g, r, count, k, selected, scratch_);
              });
        }
      }
    }
  }

  void compare_threshold(Shape shape, std::int64_t count) {
    compare_threshold(shape, count, {0.0F, 0.3F, 2.0F, 1e-39F, kInf});
  }

  void compare_threshold(Shape shape, std::int64_t count, std::initializer_list<float> thresholds) {
    const std::vector<float> gradient = make(shape, count);
    for (const float threshold : thresholds) {
      for (const int layout : {0, 1, 2, 3}) {
        const std::int64_t offset = layout % 2;
        const bool with_residual = layout > 1;
        SCOPED_TRACE("shape " + std::to_string(static_cast<int>(shape)) + ", from " +
                     std::to_string(threshold) + " of " + std::to_string(count));
        Selector selector;
        compare(
            gradient, offset, with_residual,
            [&](ConstView g, View r) { return selector.above(g, threshold, r); },
            [&](const float* g, float* r, const Selected& selected) {
              select_above(g, r, count, threshold, selected, scratch_);
            });
      }
    }
  }
};

TEST_F(GpuSelect, TopKIsThatOfTheCpu) {
  for (const Shape shape : kShapes) {
    for (const std::int64_t count : {1, 31, 4096, 4097}) compare_top_k(shape, count);
  }
}

TEST_F(GpuSelect, AThresholdSelectsAsTheCpuDoes) {
  for (const Shape shape : kShapes) {
    for (const std::int64_t count : {0, 1, 4096, 4097}) compare_threshold(shape, count);
  }
}

TEST_F(GpuSelect, SelectsAmongMoreTilesThanAWarpLooksBackAt) {
  constexpr std::int64_t kCount = 140001;  // enough for a sample, too
  for (const Shape shape : kShapes) compare_top_k(shape, kCount, {kCount / 100});
  compare_top_k(Shape::normal, kCount, {1, kCount / 2, kCount});
  compare_threshold(Shape::few_values, kCount, {0.3F});
}

TEST_F(GpuSelect, SelectsAmongMillions) {
  for (const Shape shape : kShapes) {
    compare_top_k(shape, 3000001);
    compare_threshold(shape, 3000001);
  }
}

TEST_F(GpuSelect, FindsTheKthWhereTheSampleMisleads) { compare_misled(140001); }

TEST_F(GpuSelect, FindsTheKthAmongMillionsWhereTheSampleMisleads) { compare_misled(5000000); }

TEST_F(GpuSelect, DropsWhatHasNoRoom) {
  const auto gradient = to_gpu(std::vector<float>(10000, 1.0F));
  const auto indices = to_gpu(std::vector<std::uint32_t>(20, 5));
  const auto values = to_gpu(std::vector<float>(20, 5.0F));
  const auto found = room<std::uint32_t>(1);
  run([&] {
    select_above(gradient.data, nullptr, 10000, 0.5F, {indices.data, values.data, found.data, 10},
                 scratch_);
  });
  EXPECT_EQ(from_gpu(found)[0], 10000U);
  EXPECT_EQ(from_gpu(indices)[9], 9U);
  EXPECT_EQ(from_gpu(indices)[10], 5U) << "not written";
}

TEST_F(GpuSelect, WhatHasNoRoomStaysInTheResidual) {
  const auto gradient = to_gpu(std::vector<float>(100, 1.0F));
  const auto residual = to_gpu(std::vector<float>(100, 1.0F));
  const auto indices = room<std::uint32_t>(10);
  const auto values = room<float>(10);
  const auto found = room<std::uint32_t>(1);
  run([&] {
    select_above(gradient.data, residual.data, 100, 0.5F,
                 {indices.data, values.data, found.data, 10}, scratch_);
  });
  std::vector<float> expected(100, 2.0F);
  std::fill_n(expected.begin(), 10, 0.0F);
  EXPECT_EQ(from_gpu(residual), expected);
}

}  // namespace
}  // namespace tutti::cuda
