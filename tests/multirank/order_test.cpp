// The numbers: the order of additions, how 16-bit floats accumulate, averages, NaN, wrapping.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/data.hpp"
#include "support/memory.hpp"
#include "support/rough.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

class Order : public RankTest {};

/** Sizes around those where transports change how they move the data. */
std::vector<std::int64_t> sizes(DType dtype) {
  std::vector<std::int64_t> all{1, 2, 3, 7, 100, 1025, 300'001};
  for (const std::int64_t bytes : {4 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20}) {
    for (const std::int64_t more : {-1, 0, 1}) all.push_back(bytes / size_of(dtype) + more);
  }
  return all;
}

template <class T>
void check_order(Communicator& comm) {
  const DType dtype = DTypeOf<T>::value;
  const std::vector<std::int64_t> counts = sizes(dtype);
  const std::int64_t most = *std::max_element(counts.begin(), counts.end());
  Arena arena(comm, most * size_of(dtype));
  const int rank = comm.global_rank();
  const int ranks = comm.world_size();
  const std::vector<T> mine = rough<T>(rank, most);
  const std::vector<T> sum = sum_in_order<T>(most, 1);
  const std::vector<T> scaled = sum_in_order<T>(most, static_cast<T>(0.3));
  std::vector<T> average = sum;
  for (T& value : average) value /= static_cast<T>(ranks);
  for (const std::int64_t count : counts) {
    for (const Memory memory : kMemories) {
      SCOPED_TRACE("count " + std::to_string(count) + ", " + std::string(name_of(memory)));
      const View in = arena.input(memory, count, dtype);
      const View out = arena.output(memory, count, dtype);
      const auto reset = [&] {
        std::memcpy(in.data, mine.data(), static_cast<std::size_t>(in.bytes()));
      };
      reset();
      comm.all_reduce(in, out);
      ASSERT_TRUE(same_bits(out, sum.data())) << "all_reduce";
      comm.all_reduce(in, Reduce::average);
      ASSERT_TRUE(same_bits(in, average.data())) << "average in place";
      reset();
      // The factor as the caller's double and as T differ: the contract is about T's arithmetic.
      comm.all_reduce(in, out, Reduce::premul_sum(static_cast<double>(static_cast<T>(0.3))));
      ASSERT_TRUE(same_bits(out, scaled.data())) << "premul_sum";
      const int root = static_cast<int>(count) % ranks;
      comm.reduce(in, out, root);
      if (rank == root) {
        ASSERT_TRUE(same_bits(out, sum.data())) << "reduce";
      }
      const std::int64_t part = count / ranks;
      comm.reduce_scatter(in.part(0, part * ranks), out.part(0, part));
      ASSERT_TRUE(same_bits(out.part(0, part), sum.data() + rank * part)) << "reduce_scatter";
    }
  }
}

TEST_F(Order, FloatsAddInRankOrderInsideAHostThenHostByHost) { on_ranks(check_order<float>); }

TEST_F(Order, DoublesAddInRankOrderInsideAHostThenHostByHost) { on_ranks(check_order<double>); }

TEST_F(Order, ACancellationTellsTheOrder) {
  if (ranks() < 3 || ranks() > 4 || !world().one_host()) {
    GTEST_SKIP() << "needs three or four ranks of one host";
  }
  on_ranks([](Communicator& comm) {
    // ((1e8 + 1) - 1e8) + 1 = 1 in f32; other orders give 0 or 2.
    constexpr std::array<float, 4> kValues{1e8F, 1.0F, -1e8F, 1.0F};
    float value = kValues.at(static_cast<std::size_t>(comm.global_rank()));
    comm.all_reduce(View(&value, 1, DType::f32));
    EXPECT_EQ(value, ranks() == 3 ? 0.0F : 1.0F);
  });
}

TEST_F(Order, EveryDTypeHasTheSameBitsOnAllRanksInEveryRun) {
  on_ranks([](Communicator& comm) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      for (const std::int64_t count : {1, 17, 5000, 100'000}) {
        const std::vector<float> source = rough<float>(comm.global_rank(), count);
        std::vector<std::byte> data(static_cast<std::size_t>(count * size_of(dtype)));
        const View view(data.data(), count, dtype);
        std::vector<std::byte> first;
        for (int run = 0; run < 4; ++run) {
          fill(view, [&](std::int64_t i) {
            return std::clamp(source[static_cast<std::size_t>(i)], -6e4F, 6e4F);
          });
          comm.all_reduce(view, Reduce::average);
          if (run == 0) first = data;
          ASSERT_EQ(std::memcmp(first.data(), data.data(), data.size()), 0)
              << name_of(dtype) << ", count " << count << ", run " << run;
        }
        std::vector<std::byte> all(data.size() * static_cast<std::size_t>(ranks()));
        comm.all_gather(ConstView(data.data(), count, dtype),
                        View(all.data(), ranks() * count, dtype));
        for (int rank = 0; rank < ranks(); ++rank) {
          const auto offset = static_cast<std::size_t>(rank) * data.size();
          ASSERT_EQ(std::memcmp(all.data() + offset, data.data(), data.size()), 0)
              << name_of(dtype) << ", count " << count << ", rank " << rank;
        }
      }
    }
  });
}

/** Reduces one value a rank, in a message of `count` equal elements. */
double reduce_one(Communicator& comm, DType dtype, double value, Reduce reduce,
                  std::int64_t count) {
  std::vector<std::byte> data(static_cast<std::size_t>(count * size_of(dtype)));
  const View view(data.data(), count, dtype);
  fill(view, [&](std::int64_t) { return value; });
  comm.all_reduce(view, reduce);
  return dispatch(dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto* elements = static_cast<const T*>(view.data);
    using Bits = std::array<std::byte, sizeof(T)>;
    for (std::int64_t i = 1; i < count; ++i) {
      EXPECT_EQ(std::bit_cast<Bits>(elements[i]), std::bit_cast<Bits>(elements[0]))
          << "element " << i << " differs";
    }
    return number(elements[0]);
  });
}

class Arithmetic : public RankTest {
 protected:
  static constexpr std::array<std::int64_t, 3> kCounts{1, 100, 100'000};
};

TEST_F(Arithmetic, SixteenBitFloatsAccumulateInFloat) {
  if (ranks() < 3 || !world().one_host()) GTEST_SKIP() << "needs three ranks of one host";
  on_ranks([](Communicator& comm) {
    for (const std::int64_t count : kCounts) {
      // 2048 + 1 is 2048 in f16, and 256 + 1 is 256 in bf16.
      const bool large = comm.global_rank() == 0;
      const bool counts = comm.global_rank() < 3;
      EXPECT_EQ(reduce_one(comm, DType::f16, large ? 2048 : counts ? 1 : 0, {}, count), 2050);
      EXPECT_EQ(reduce_one(comm, DType::bf16, large ? 256 : counts ? 1 : 0, {}, count), 258);
    }
  });
}

TEST_F(Arithmetic, AveragesNearTheLargestF16DoNotOverflow) {
  on_ranks([](Communicator& comm) {
    for (const std::int64_t count : kCounts) {
      EXPECT_EQ(reduce_one(comm, DType::f16, 65504, Reduce::average, count), 65504);
      EXPECT_EQ(reduce_one(comm, DType::f16, -65504, Reduce::average, count), -65504);
    }
  });
}

TEST_F(Arithmetic, SumsBeyondF16BecomeInfinite) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    EXPECT_EQ(reduce_one(comm, DType::f16, 65504, {}, 10), std::numeric_limits<double>::infinity());
  });
}

TEST_F(Arithmetic, IntegerAveragesRoundTowardsZero) {
  on_ranks([](Communicator& comm) {
    // The sum is ranks * 7 + (ranks - 1), which falls just short of 8 each.
    const int extra = comm.global_rank() == 0 ? 0 : 1;
    for (const std::int64_t count : kCounts) {
      EXPECT_EQ(reduce_one(comm, DType::i32, 7 + extra, Reduce::average, count), 7);
      EXPECT_EQ(reduce_one(comm, DType::i32, -7 - extra, Reduce::average, count), -7);
      EXPECT_EQ(reduce_one(comm, DType::i64, -7 - extra, Reduce::average, count), -7);
      EXPECT_EQ(reduce_one(comm, DType::u8, 7 + extra, Reduce::average, count), 7);
    }
  });
}

TEST_F(Arithmetic, IntegersWrapAround) {
  on_ranks([](Communicator& comm) {
    const auto n = static_cast<std::uint64_t>(ranks());
    for (const std::int64_t count : kCounts) {
      std::vector<std::int32_t> narrow(static_cast<std::size_t>(count), 0x7FFFFFFF);
      std::vector<std::int64_t> wide(narrow.size(), std::numeric_limits<std::int64_t>::max());
      std::vector<std::uint8_t> bytes(narrow.size(), 200);
      comm.all_reduce(View(std::span(narrow)));
      comm.all_reduce(View(std::span(wide)));
      comm.all_reduce(View(std::span(bytes)));
      const auto max = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
      EXPECT_EQ(narrow, std::vector<std::int32_t>(narrow.size(),
                                                  static_cast<std::int32_t>(n * 0x7FFFFFFFU)));
      EXPECT_EQ(wide, std::vector<std::int64_t>(wide.size(), static_cast<std::int64_t>(n * max)));
      EXPECT_EQ(bytes, std::vector<std::uint8_t>(bytes.size(), static_cast<std::uint8_t>(n * 200)));
      std::fill(wide.begin(), wide.end(), std::int64_t{1} << 33U);
      comm.all_reduce(View(std::span(wide)), Reduce::product);
      const std::int64_t product = ranks() == 1 ? std::int64_t{1} << 33U : 0;
      EXPECT_EQ(wide, std::vector<std::int64_t>(wide.size(), product));
    }
  });
}

TEST_F(Arithmetic, LargeIntegersAreExact) {
  on_ranks([](Communicator& comm) {
    // Neither 2^53 + 1 nor its multiples are doubles.
    const std::int64_t odd = (std::int64_t{1} << 53U) + 1;
    std::vector<std::int64_t> data(1000, odd);
    comm.all_reduce(View(std::span(data)));
    EXPECT_EQ(data, std::vector<std::int64_t>(1000, ranks() * odd));
    std::fill(data.begin(), data.end(), odd);
    comm.all_reduce(View(std::span(data)), Reduce::premul_sum(-3));
    EXPECT_EQ(data, std::vector<std::int64_t>(1000, std::int64_t{-3} * ranks() * odd));
    std::fill(data.begin(), data.end(), odd + comm.global_rank());
    comm.all_reduce(View(std::span(data)), Reduce::max);
    EXPECT_EQ(data, std::vector<std::int64_t>(1000, odd + ranks() - 1));
  });
}

TEST_F(Arithmetic, ANaNOfAnyRankMakesMinAndMaxNaN) {
  on_ranks([](Communicator& comm) {
    const double nan = std::numeric_limits<double>::quiet_NaN();
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      for (int who = 0; who < ranks(); ++who) {
        const double mine = who == comm.global_rank() ? nan : comm.global_rank();
        for (const ReduceKind kind : {ReduceKind::min, ReduceKind::max}) {
          EXPECT_TRUE(std::isnan(reduce_one(comm, dtype, mine, kind, 37)))
              << name_of(dtype) << ' ' << name_of(kind) << ", NaN of rank " << who;
        }
      }
    }
  });
}

TEST_F(Arithmetic, InfinitiesAreOrdinaryValues) {
  on_ranks([](Communicator& comm) {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16}) {
      const double mine = comm.global_rank() == 0 ? infinity : 1;
      EXPECT_EQ(reduce_one(comm, dtype, mine, Reduce::max, 9), infinity);
      EXPECT_EQ(reduce_one(comm, dtype, mine, Reduce::sum, 9), infinity);
      EXPECT_EQ(reduce_one(comm, dtype, -mine, Reduce::min, 9), -infinity);
    }
  });
}

TEST_F(Arithmetic, PremulSumScalesBeforeItAdds) {
  on_ranks([](Communicator& comm) {
    // Two times 32768 is beyond f16 already.
    EXPECT_EQ(reduce_one(comm, DType::f16, 32768, Reduce::premul_sum(0.25), 50), 8192 * ranks());
    EXPECT_EQ(reduce_one(comm, DType::f32, 6, Reduce::premul_sum(-0.5), 50), -3 * ranks());
    EXPECT_EQ(reduce_one(comm, DType::u8, 2, Reduce::premul_sum(5), 50), 10 * ranks());
  });
}

}  // namespace
}  // namespace tutti::test
