// What selection and clipping ask of a GPU: launches, memory, and how often they read a vector.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "device/cuda/kernels.hpp"
#include "device/device_memory.hpp"
#include "gpu/gpu_test.hpp"
#include "gpu/on_cpu/grid.hpp"
#include "tutti/select.hpp"

namespace tutti::cuda {
namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

class GpuLaunches : public test::KernelTest {
 protected:
  void TearDown() override { on_cpu::set_launch_hook({}); }

  /** A vector, and room for what is selected of it. */
  struct Selection {
    Array<float> values;
    Array<std::uint32_t> indices;
    Array<float> selected;
    Array<std::uint32_t> count;

    Selected to() const {
      return {indices.data, selected.data, count.data, static_cast<std::uint32_t>(indices.count)};
    }
  };

  Selection prepare(const std::vector<float>& values) const {
    const auto count = static_cast<std::int64_t>(values.size());
    return {to_gpu(values), room<std::uint32_t>(count), room<float>(count), room<std::uint32_t>(1)};
  }

  void expect_top_k(const Selection& selection, const std::vector<float>& values,
                    std::int64_t k) const {
    Selector selector;
    const SparseView expected = selector.top_k(std::span<const float>(values), k);
    ASSERT_EQ(from_gpu(selection.count)[0], static_cast<std::uint32_t>(expected.count));
    const std::vector<std::uint32_t> indices = from_gpu(selection.indices);
    const std::vector<float> selected = from_gpu(selection.selected);
    for (std::int64_t i = 0; i < expected.count; ++i) {
      const auto at = static_cast<std::size_t>(i);
      ASSERT_EQ(indices[at], expected.indices[i]) << i;
      ASSERT_EQ(selected[at], expected.values[i]) << i;
    }
  }

  static int launches(const std::function<void()>& action) {
    const int before = on_cpu::requests().launches;
    action();
    return on_cpu::requests().launches - before;
  }
};

float unit(std::int64_t i) {
  return static_cast<float>(static_cast<std::uint32_t>(i) * 2654435761U >> 8U) / 16777216.0F - 0.5F;
}

std::vector<float> make(std::int64_t count, const std::function<float(std::int64_t)>& value) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t i = 0; i < count; ++i) values[static_cast<std::size_t>(i)] = value(i);
  return values;
}

TEST_F(GpuLaunches, TopKOfTwoMebiTakesNoMoreThanFive) {
  constexpr std::int64_t kCount = std::int64_t{2} << 20;
  const std::vector<float> values =
      make(kCount, [](std::int64_t i) { return unit(i) * unit(i + 7) * unit(i + 13); });
  const Selection selection = prepare(values);
  for (const std::int64_t k : {kCount / 100, kCount / 2}) {
    const auto select = [&] {
      select_top_k(selection.values.data, nullptr, kCount, k, selection.to(), scratch_);
    };
    EXPECT_LE(launches(select), 5) << k;
    expect_top_k(selection, values, k);
  }
}

TEST_F(GpuLaunches, WhatComesAgainIsOneGraph) {
  constexpr std::int64_t kCount = 30001;
  Selection selection = prepare(std::vector<float>(kCount));
  const Selection other = prepare(make(kCount, unit));
  const auto graphs = [] { return on_cpu::requests().graphs; };
  const int before = graphs();
  for (int step = 0; step < 5; ++step) {
    // The same memory with something else in it, and other work in between.
    const std::vector<float> values =
        make(kCount, [&](std::int64_t i) { return unit(i * (step + 1)); });
    std::copy(values.begin(), values.end(), selection.values.data);
    select_top_k(selection.values.data, nullptr, kCount, 300, selection.to(), scratch_);
    expect_top_k(selection, values, 300);
    EXPECT_EQ(graphs() - before, step);
    select_above(other.values.data, nullptr, kCount, 0.25F, other.to(), scratch_);
  }
  // One argument is another.
  select_top_k(selection.values.data, nullptr, kCount, 301, selection.to(), scratch_);
  select_top_k(other.values.data, nullptr, kCount, 300, other.to(), scratch_);
  expect_top_k(other, make(kCount, unit), 300);
  EXPECT_EQ(graphs() - before, 4);
}

TEST_F(GpuLaunches, GraphsAreRightAfterTheirScratchMemoryHasGrown) {
  const std::vector<float> few = make(20001, unit);
  const std::vector<float> many = make(200001, unit);
  const Selection small = prepare(few);
  const Selection large = prepare(many);
  const int before = on_cpu::requests().graphs;
  for (const Selection* selection : {&small, &small, &large, &small, &large, &small, &large}) {
    select_top_k(selection->values.data, nullptr, selection->values.count, 200, selection->to(),
                 scratch_);
    expect_top_k(*selection, selection == &small ? few : many, 200);
  }
  EXPECT_GE(on_cpu::requests().graphs - before, 4);
}

TEST_F(GpuLaunches, WhereThereAreNoGraphsAllIsLaunchedOneByOne) {
  const std::vector<float> values = make(30001, unit);
  const Selection selection = prepare(values);
  const auto select = [&] {
    select_top_k(selection.values.data, nullptr, 30001, 300, selection.to(), scratch_);
  };
  on_cpu::requests().graphs_refused = true;
  for (int step = 0; step < 3; ++step) {
    EXPECT_EQ(launches(select), 5);
    expect_top_k(selection, values, 300);
  }
  on_cpu::requests().graphs_refused = false;
  EXPECT_EQ(launches(select), 5) << "it is not tried again";
}

TEST_F(GpuLaunches, FewElementsTakeTwo) {
  const std::vector<float> values = make(16384, unit);
  const Selection selection = prepare(values);
  const auto top_k = [&] {
    select_top_k(selection.values.data, nullptr, 16384, 100, selection.to(), scratch_);
  };
  EXPECT_LE(launches(top_k), 2);
  expect_top_k(selection, values, 100);
  const auto above = [&] {
    select_above(selection.values.data, nullptr, 16384, 0.25F, selection.to(), scratch_);
  };
  EXPECT_LE(launches(above), 2);
}

TEST_F(GpuLaunches, EveryVectorIsReadOnceWhateverItsValues) {
  constexpr std::int64_t kCount = 140001;
  const std::int64_t k = kCount / 100;
  const std::vector<std::vector<float>> vectors{
      make(kCount, [](std::int64_t i) { return unit(i); }),
      make(kCount,
           [](std::int64_t i) { return std::ldexp(unit(i), static_cast<int>(i % 60) - 30); }),
      make(kCount, [](std::int64_t) { return 0.0F; }),
      make(kCount, [](std::int64_t) { return -2.0F; }),
      make(kCount, [](std::int64_t i) { return i % 1000 == 3 ? unit(i) : 0.0F; }),  // fewer than k
      make(kCount, [](std::int64_t i) { return i % 50 == 3 ? unit(i) : 0.0F; }),    // more
      make(kCount, [](std::int64_t i) { return i % 100 == 3 ? 2.0F : 1.0F; }),      // about k
      make(kCount, [](std::int64_t i) { return std::floor(6.0F * unit(i)); }),
      make(kCount, [](std::int64_t i) { return 1.0F + 1e-7F * static_cast<float>(i % 3); }),
      make(kCount, [](std::int64_t i) {
        return i % 60 == 7 ? std::numeric_limits<float>::infinity() : unit(i);
      })};
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    SCOPED_TRACE("vector " + std::to_string(i));
    const Selection selection = prepare(vectors[i]);
    // The second launch is the pass over everything: whoever reads the vector later finds rubbish.
    int launch = 0;
    on_cpu::set_launch_hook([&] {
      if (launch++ == 2) std::fill_n(selection.values.data, kCount, kNaN);
    });
    select_top_k(selection.values.data, nullptr, kCount, k, selection.to(), scratch_);
    on_cpu::set_launch_hook({});
    expect_top_k(selection, vectors[i], k);
  }
}

TEST_F(GpuLaunches, ClippingToANormTakesTwo) {
  const auto data = to_gpu(std::vector<float>(100003, 2.0F));
  scratch_.counter();
  const auto clip = [&] { accumulate(data.data, data.data, 100003, 0.0F, 1.0F, scratch_); };
  EXPECT_LE(launches(clip), 2);
  EXPECT_LE(launches(clip), 2);
}

TEST_F(GpuLaunches, MemoryIsKeptFromCallToCall) {
  const Selection selection = prepare(make(140001, unit));
  const auto all = [&] {
    select_top_k(selection.values.data, nullptr, 140001, 1400, selection.to(), scratch_);
    select_above(selection.values.data, nullptr, 140001, 0.25F, selection.to(), scratch_);
    accumulate(selection.values.data, selection.values.data, 140001, 0.0F, 1e9F, scratch_);
  };
  all();
  const int before = on_cpu::requests().allocations;
  all();
  EXPECT_EQ(on_cpu::requests().allocations, before);
}

TEST_F(GpuLaunches, ATallyIsReadAStepLateAndNobodyWaitsForIt) {
  Tally tally(stream_);
  const auto values = to_gpu(std::vector<float>{kNaN, 1.0F, kNaN});
  const auto count = to_gpu(std::vector<std::uint32_t>{3});
  const auto step = [&] {
    count_non_finite({nullptr, values.data, count.data, 3}, tally.where(), stream_);
  };
  step();
  const int launches = on_cpu::requests().launches;
  const int queries = on_cpu::requests().queries;
  EXPECT_EQ(tally.take(), 0);
  EXPECT_EQ(on_cpu::requests().queries, queries);
  EXPECT_EQ(on_cpu::requests().launches, launches);
  step();
  step();
  EXPECT_EQ(tally.take(), 2);
  EXPECT_EQ(tally.take(), 4);
  EXPECT_EQ(tally.take(), 0);
}

}  // namespace
}  // namespace tutti::cuda
