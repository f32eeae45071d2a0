// The GPU's arithmetic beside the CPU's: the same bits.
#include "device/cuda/kernels.hpp"

#include <cmath>

#include "device/cpu/kernels.hpp"
#include "gpu/gpu_test.hpp"
#include "support/data.hpp"
#include "support/floats.hpp"

namespace tutti::cuda {
namespace {

constexpr std::int64_t kSizes[]{0, 1, 3, 4, 7, 8, 255, 4095, 4096, 4097, 100003};
constexpr std::int64_t kOffsets[]{0, 1, 4, 8};  // of these, 4 is a group's of f32 alone

/** Numbers of many magnitudes, some of which are not finite. */
std::vector<float> numbers(std::int64_t count, int seed, bool finite = true) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto h =
        static_cast<std::uint32_t>(i * 2654435761U + static_cast<unsigned>(seed) * std::size_t{97});
    const float unit = static_cast<float>(h >> 8U) / 16777216.0F - 0.5F;
    values[i] = std::ldexp(unit, static_cast<int>(h % 40U) - 20);
    if (!finite && i % 1000 == 5) values[i] = i % 2000 == 5 ? kInf : std::nanf("");
  }
  return values;
}

std::vector<float> squares(std::vector<float> values) {
  for (float& value : values) value = value * value;
  return values;
}

/** Of NaN only that it is one. */
void expect_same(const std::vector<float>& values, const std::vector<float>& expected) {
  ASSERT_EQ(values.size(), expected.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_TRUE(values[i] == expected[i] || (std::isnan(values[i]) && std::isnan(expected[i])))
        << "element " << i << " of " << values.size() << " is " << values[i] << ", not "
        << expected[i];
  }
}

class GpuKernels : public test::KernelTest {};

TEST_F(GpuKernels, NarrowAndWidenAsTheCpuDoes) {
  const Narrowing narrowing{.scale = 0.25F, .limit = 100.0F};
  for (const DType wire : {DType::f16, DType::bf16}) {
    for (const std::int64_t offset : kOffsets) {
      for (const std::int64_t count : kSizes) {
        SCOPED_TRACE(std::to_string(count) + " at " + std::to_string(offset));
        const std::vector<float> values = numbers(count, 1);
        std::vector<std::uint16_t> expected(values.size());
        cpu::narrow(values.data(), expected.data(), count, wire, narrowing);
        std::vector<float> back(values.size());
        const std::int64_t not_finite = cpu::widen(expected.data(), back.data(), count, wire, 3.0F);

        const auto from = to_gpu(values, offset);
        const auto packet = room<std::uint16_t>(count, offset);
        const auto to = room<float>(count, offset);
        const auto found = to_gpu(std::vector<std::int64_t>{7});
        const Piece there{from.data, packet.data, count};
        const Piece again{packet.data, to.data, count};
        run([&] {
          narrow(std::span(&there, 1), wire, narrowing, stream_);
          widen(std::span(&again, 1), wire, 3.0F, found.data, stream_);
        });
        EXPECT_EQ(from_gpu(packet), expected);
        EXPECT_EQ(from_gpu(to), back);
        EXPECT_EQ(from_gpu(found)[0], 7 + not_finite);
      }
    }
  }
}

TEST_F(GpuKernels, WhatIsNotFiniteStaysSoAndIsCounted) {
  const std::int64_t count = 100003;
  const std::vector<float> values = numbers(count, 2, false);
  const auto from = to_gpu(values);
  const auto packet = room<std::uint16_t>(count);
  const auto to = room<float>(count);
  const auto found = to_gpu(std::vector<std::int64_t>{0});
  const Piece there{from.data, packet.data, count};
  const Piece again{packet.data, to.data, count};
  run([&] {
    narrow(std::span(&there, 1), DType::f16, {.scale = 1.0F, .limit = 1000.0F}, stream_);
    widen(std::span(&again, 1), DType::f16, 1.0F, found.data, stream_);
  });
  const std::vector<float> result = from_gpu(to);
  std::int64_t expected = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    ++expected;
    EXPECT_EQ(std::isnan(result[i]), std::isnan(values[i])) << i;
    EXPECT_EQ(std::isinf(result[i]), std::isinf(values[i])) << i;
  }
  EXPECT_EQ(from_gpu(found)[0], expected);
}

TEST_F(GpuKernels, AListOfManyTensorsIsPackedWhole) {
  const std::int64_t pieces = 300;  // more than one launch takes
  std::vector<float> values = numbers(pieces * 700, 3);
  const auto from = to_gpu(values);
  const auto packet = room<float>(pieces * 700);
  stream_.fill_with_zeros(packet.view());
  std::vector<Piece> list;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t count = i % 7 == 0 ? 0 : i + 300;  // what is between stays zero
    list.push_back({from.data + i * 700, packet.data + i * 700, count});
    for (std::int64_t j = 0; j < 700; ++j) {
      float& value = values[static_cast<std::size_t>(i * 700 + j)];
      value = j < count ? value * 0.5F : 0.0F;
    }
  }
  run([&] { narrow(list, DType::f32, {.scale = 0.5F}, stream_); });
  EXPECT_EQ(from_gpu(packet), values);
}

TEST_F(GpuKernels, SgdIsThatOfTheCpu) {
  const SgdStep steps[]{
      {.lr = 0.1F, .gradient_scale = 0.5F},
      {.lr = 0.1F, .momentum = 0.9F, .weight_decay = 0.01F},
      {.lr = 0.1F, .momentum = 0.9F, .nesterov = true},
      {.lr = 0.1F, .momentum = 0.9F, .dampening = 0.5F, .first = true},
  };
  for (const SgdStep& step : steps) {
    for (const std::int64_t offset : kOffsets) {
      for (const std::int64_t count : kSizes) {
        std::vector<float> parameter = numbers(count, 4);
        const std::vector<float> gradient = numbers(count, 5);
        std::vector<float> velocity = numbers(count, 6);
        const bool keeps = step.momentum != 0.0F;
        const auto p = to_gpu(parameter, offset);
        const auto g = to_gpu(gradient);
        const auto v = to_gpu(velocity);
        const SgdPiece piece{p.data, g.data, keeps ? v.data : nullptr, count};
        run([&] { sgd_update(std::span(&piece, 1), step, stream_); });
        cpu::sgd_update(parameter.data(), gradient.data(), keeps ? velocity.data() : nullptr, count,
                        step);
        EXPECT_EQ(from_gpu(p), parameter);
        EXPECT_EQ(from_gpu(v), velocity);
      }
    }
  }
}

TEST_F(GpuKernels, AdamIsThatOfTheCpu) {
  const AdamStep decayed{.correction = {0.1F, 0.03F},
                         .beta1 = 0.9F,
                         .beta2 = 0.999F,
                         .eps = 1e-8F,
                         .weight_decay = 0.01F,
                         .gradient_scale = 0.5F};
  AdamStep decoupled = decayed;
  decoupled.weight_decay = 0.0F;
  decoupled.keep = 0.99F;
  for (const AdamStep& step : {decayed, decoupled}) {
    for (const std::int64_t offset : kOffsets) {
      for (const std::int64_t count : kSizes) {
        std::vector<float> parameter = numbers(count, 4);
        const std::vector<float> gradient = numbers(count, 5);
        std::vector<float> first = numbers(count, 6);
        std::vector<float> second = squares(numbers(count, 7));
        const auto p = to_gpu(parameter, offset);
        const auto g = to_gpu(gradient);
        const auto m = to_gpu(first);
        const auto v = to_gpu(second);
        const AdamPiece piece{p.data, g.data, m.data, v.data, count};
        run([&] { adam_update(std::span(&piece, 1), step, stream_); });
        cpu::adam_update({parameter.data(), gradient.data(), first.data(), second.data(), count},
                         step);
        EXPECT_EQ(from_gpu(p), parameter);
        EXPECT_EQ(from_gpu(m), first);
        EXPECT_EQ(from_gpu(v), second);
      }
    }
  }
}

TEST_F(GpuKernels, AdagradIsThatOfTheCpu) {
  for (const float weight_decay : {0.0F, 0.01F}) {
    const AdagradStep step{
        .rate = 0.1F, .eps = 1e-10F, .weight_decay = weight_decay, .gradient_scale = 0.5F};
    for (const std::int64_t offset : kOffsets) {
      for (const std::int64_t count : kSizes) {
        std::vector<float> parameter = numbers(count, 4);
        const std::vector<float> gradient = numbers(count, 5);
        std::vector<float> sum = squares(numbers(count, 6));
        const auto p = to_gpu(parameter, offset);
        const auto g = to_gpu(gradient);
        const auto v = to_gpu(sum);
        const AdagradPiece piece{p.data, g.data, v.data, count};
        run([&] { adagrad_update(std::span(&piece, 1), step, stream_); });
        cpu::adagrad_update({parameter.data(), gradient.data(), sum.data(), count}, step);
        EXPECT_EQ(from_gpu(p), parameter);
        EXPECT_EQ(from_gpu(v), sum);
      }
    }
  }
}

TEST_F(GpuKernels, ScatterAddsInTheOrderOfTheCalls) {
  const auto sum = to_gpu(std::vector<float>(1000, 0.0F));
  const auto indices = to_gpu(std::vector<std::uint32_t>{0, 7, 999});
  const auto count = to_gpu(std::vector<std::uint32_t>{3});
  for (const float value : {0x1p24F, 1.0F, -0x1p24F}) {  // another order gives another sum
    const auto values = to_gpu(std::vector<float>(3, value));
    run([&] { scatter_add({indices.data, values.data, count.data, 2}, sum.data, stream_); });
  }
  std::vector<float> expected(1000, 0.0F);
  expected[0] = expected[7] = (0x1p24F + 1.0F) - 0x1p24F;
  EXPECT_EQ(from_gpu(sum), expected) << "no more than `most` entries, either";
}

TEST_F(GpuKernels, WorksOnEntriesOfAnyAlignment) {
  for (const std::int64_t offset : kOffsets) {
    for (const std::int64_t count : kSizes) {
      const std::vector<float> added = numbers(count, 8, false);
      std::vector<std::uint32_t> places(added.size());
      std::vector<float> expected = numbers(2 * count, 9);
      std::vector<float> cleared = expected;
      std::int64_t not_finite = 0;
      const auto sum = to_gpu(expected);
      const auto data = to_gpu(expected);
      for (std::size_t i = 0; i < added.size(); ++i) {
        const std::size_t place = 2 * i + i % 2;
        places[i] = static_cast<std::uint32_t>(place);
        expected[place] = expected[place] + added[i];
        cleared[place] = 0.0F;
        if (!std::isfinite(added[i])) ++not_finite;
      }
      const auto indices = to_gpu(places, offset);
      const auto values = to_gpu(added, offset);
      const auto all = to_gpu(std::vector<std::uint32_t>{static_cast<std::uint32_t>(count)});
      const auto found = to_gpu(std::vector<std::int64_t>{0});
      const Entries entries{indices.data, values.data, all.data, count + 5};
      run([&] {
        scatter_add(entries, sum.data, stream_);
        clear(entries, data.data, stream_);
        count_non_finite(entries, found.data, stream_);
      });
      expect_same(from_gpu(sum), expected);
      EXPECT_EQ(from_gpu(data), cleared) << count << " at " << offset;
      EXPECT_EQ(from_gpu(found)[0], not_finite) << count << " at " << offset;
    }
  }
}

TEST_F(GpuKernels, EntriesAreClearedAndCounted) {
  const auto data = to_gpu(std::vector<float>(1000, 3.0F));
  const auto indices = to_gpu(std::vector<std::uint32_t>{0, 7, 999});
  const auto values = to_gpu(std::vector<float>{1.0F, kInf, std::nanf("")});
  const auto three = to_gpu(std::vector<std::uint32_t>{3});
  const auto found = to_gpu(std::vector<std::int64_t>{5});
  run([&] {
    clear({indices.data, values.data, three.data, 2}, data.data, stream_);
    count_non_finite({indices.data, values.data, three.data, 100}, found.data, stream_);
  });
  std::vector<float> expected(1000, 3.0F);
  expected[0] = expected[7] = 0.0F;
  EXPECT_EQ(from_gpu(data), expected);
  EXPECT_EQ(from_gpu(found)[0], 7);
}

TEST_F(GpuKernels, DivideRoundsAsTheCpuDoes) {
  for (const std::int64_t offset : kOffsets) {
    for (const std::int64_t count : kSizes) {
      std::vector<float> values = numbers(count, 7);
      const auto data = to_gpu(values, offset);
      run([&] { divide(data.data, count, 3.0F, stream_); });
      for (float& value : values) value = value / 3.0F;
      EXPECT_EQ(from_gpu(data), values) << count;
    }
  }
}

TEST_F(GpuKernels, AccumulatesAsTheCpuDoes) {
  for (const std::int64_t offset : kOffsets) {
    for (const std::int64_t count : kSizes) {
      std::vector<float> sum = numbers(count, 8);
      const std::vector<float> term = numbers(count, 9);
      const auto on_gpu = to_gpu(sum, offset);
      const auto terms = to_gpu(term);
      run([&] { accumulate(on_gpu.data, terms.data, count, 0.75F, 0.0F, scratch_); });
      cpu::accumulate(sum.data(), term.data(), count, 0.75F, 1.0F);
      EXPECT_EQ(from_gpu(on_gpu), sum) << count << " at " << offset;
    }
  }
}

TEST_F(GpuKernels, ANormDoesNotDependOnTheAlignment) {
  for (const std::int64_t count : kSizes) {
    const std::vector<float> term = numbers(count, 10);
    const auto aligned = to_gpu(term);
    const auto other = to_gpu(term, 1);
    run([&] {
      accumulate(aligned.data, aligned.data, count, 0.0F, 0.01F, scratch_);
      accumulate(other.data, other.data, count, 0.0F, 0.01F, scratch_);
    });
    EXPECT_EQ(from_gpu(aligned), from_gpu(other)) << count;
  }
}

TEST_F(GpuKernels, ScalesDownToANorm) {
  for (const std::int64_t count : {1, 4, 4096, 100004}) {  // the norm is 2 * sqrt(count), exactly
    const auto limit = static_cast<float>(std::sqrt(static_cast<double>(count)));
    const auto data = to_gpu(std::vector<float>(static_cast<std::size_t>(count), 2.0F));
    run([&] { accumulate(data.data, data.data, count, 0.0F, limit, scratch_); });
    for (const float value : from_gpu(data)) ASSERT_NEAR(value, 1.0F, 1e-6F);
    run([&] { accumulate(data.data, data.data, count, 0.0F, 1e9F, scratch_); });
    for (const float value : from_gpu(data)) ASSERT_NEAR(value, 1.0F, 1e-6F);
  }
  const auto data = to_gpu(std::vector<float>{kInf, 2.0F});
  run([&] { accumulate(data.data, data.data, 2, 0.0F, 1.0F, scratch_); });
  EXPECT_EQ(from_gpu(data), (std::vector<float>{kInf, 2.0F})) << "all ranks are to see it";
}

}  // namespace
}  // namespace tutti::cuda
