// The sparse modes as GPUs exchange them, run on the arithmetic of CPUs: step by step the same bits
// as what CPUs do.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "multirank/sparse_model.hpp"
#include "opt/compressors/density.hpp"
#include "opt/compressors/gathered_sparse.hpp"
#include "opt/compressors/summed_sparse.hpp"
#include "opt/reducer.hpp"

namespace tutti::test::gathered_sparse_test {
namespace {

const std::vector<std::size_t> kSizes{64, 5, 1, 41, 30, 2000};

/** A model that is trained through one compressor. */
struct Replica {
  Values values{kSizes, 0.0F};
  Descent optimizer;
  std::unique_ptr<Reducer> reducer;
  std::unique_ptr<SparseCompressor> compressor;

  Replica(Communicator& communicator, bool gathered) {
    std::vector<ParameterRange> ranges;
    std::int64_t offset = 0;
    for (std::vector<float>& array : values.arrays) {
      const auto count = static_cast<std::int64_t>(array.size());
      ranges.push_back({.offset = offset, .count = count, .parameter = array.data()});
      offset += count;
    }
    const std::shared_ptr<Communicator> shared(&communicator, [](Communicator*) {});
    reducer = std::make_unique<Reducer>(shared, std::move(ranges));
    const CompressorSite site{shared, reducer->memory_elements()};
    if (gathered) {
      compressor = std::make_unique<GatheredSparseCompressor>(site);
    } else {
      compressor = std::make_unique<SummedSparseCompressor>(site);
    }
  }

  void step(const SparseChoice& choice, std::int64_t bucket, const Values& gradients) {
    compressor->choose(choice);
    reducer->begin(*compressor, bucket);
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      reducer->take(i, std::span<const float>(gradients.arrays[i]));
    }
    reducer->finish(optimizer);
  }
};

class GatheredSparse : public RankTest {
 protected:
  void expect_the_same(const SparseChoice& choice) {
    on_ranks([&](Communicator& communicator) {
      Replica summed(communicator, false);
      Replica gathered(communicator, true);
      for (int step = 0; step < 6; ++step) {
        Values gradients(kSizes);
        for (std::size_t i = 0; i < kSizes.size(); ++i) {
          gradients.arrays[i] = sparse_gradient(i, kSizes[i], step, communicator.global_rank());
        }
        const std::int64_t bucket = step % 2 == 0 ? 70 : 100'000;  // several buckets, or one
        summed.step(choice, bucket, gradients);
        gathered.step(choice, bucket, gradients);
        ASSERT_EQ(gathered.values, summed.values) << "step " << step;
        EXPECT_EQ(gathered.compressor->state().arrays, summed.compressor->state().arrays);
        EXPECT_EQ(gathered.reducer->statistics().density, summed.reducer->statistics().density);
      }
    });
  }
};

TEST_F(GatheredSparse, TopKIsThatOfCpus) {
  expect_the_same({.top_k = true, .spars = 0.1});
  expect_the_same({.top_k = true, .spars = 1.0});
  expect_the_same({.top_k = true, .spars = 0.1, .correct = false});
}

TEST_F(GatheredSparse, AThresholdIsThatOfCpus) {
  for (const double threshold : {0.0, 360.0, 1e9}) {
    SCOPED_TRACE(threshold);
    expect_the_same({.spars = threshold});
  }
  expect_the_same({.spars = 360.0, .correct = false});
}

TEST_F(GatheredSparse, MomentumIsThatOfCpus) {
  expect_the_same({.top_k = true, .spars = 0.1, .momentum = 0.5F});
}

TEST_F(GatheredSparse, ClippingIsThatOfCpus) {
  if (!world().one_host()) {
    GTEST_SKIP() << "clipped numbers round, and hosts are summed before ranks";
  }
  expect_the_same({.spars = 300.0, .momentum = 0.5F, .norm_limit = 5000.0F});
  expect_the_same({.top_k = true, .spars = 0.1, .norm_limit = 100.0F});
}

TEST_F(GatheredSparse, ASingleSumIsThatOfCpus) {
  on_ranks([](Communicator& communicator) {
    constexpr std::int64_t kCount = 3001;
    const CompressorSite site{std::shared_ptr<Communicator>(&communicator, [](Communicator*) {})};
    GatheredSparseCompressor compressor(site, Reduce::sum);
    struct Choice {
      double spars;
      bool top_k;
    };
    for (const Choice choice : {Choice{0.01, true}, Choice{1.0, true}, Choice{300.0, false},
                                Choice{0.0, false}, Choice{1e9, false}}) {
      SCOPED_TRACE(choice.spars);
      std::vector<float> summed = sparse_gradient(1, kCount, 0, communicator.global_rank());
      std::vector<float> gathered = summed;
      std::vector<float> residual(kCount, 12.0F);
      std::vector<float> kept = residual;

      compressor.choose({.top_k = choice.top_k,
                         .spars = choice.spars,
                         .correct = false,
                         .residual = kept.data()});
      const BucketView all{.elements = kCount, .gradients = std::span<float>(gathered)};
      compressor.encode(all);
      compressor.exchange(all, Stream());
      compressor.decode(all);

      DistOpt opt = over(communicator);
      opt.sparsification(std::span<float>(summed), std::span<float>(residual), choice.spars,
                         choice.top_k);
      opt.wait();
      EXPECT_EQ(gathered, summed);
      EXPECT_EQ(kept, residual);
    }
  });
}

TEST_F(GatheredSparse, WhatIsNotFiniteIsSentAndCounted) {
  on_ranks([](Communicator& communicator) {
    Replica replica(communicator, true);
    Values gradients(kSizes, 1.0F);
    if (communicator.global_rank() == 0) {
      gradients.arrays[5][7] = std::numeric_limits<float>::infinity();
    }
    replica.step({.spars = 2.0}, 100'000, gradients);
    EXPECT_EQ(replica.values.arrays[5][7], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(replica.values.arrays[5][8], 0.0F);
    EXPECT_EQ(replica.reducer->statistics().non_finite, communicator.global_rank() == 0 ? 1 : 0);
  });
}

TEST_F(GatheredSparse, MoreThanKThatAreNotFiniteTakeTurns) {
  on_ranks([](Communicator& communicator) {
    Replica replica(communicator, true);
    Values gradients(kSizes, 0.0F);
    for (const std::size_t j : {3U, 4U, 5U}) {
      gradients.arrays[5][j] = std::numeric_limits<float>::infinity();
    }
    const SparseChoice two{.top_k = true, .spars = 2.0 / 2141.0};
    replica.step(two, 100'000, gradients);
    EXPECT_EQ(replica.values.arrays[5][4], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(replica.values.arrays[5][5], 0.0F) << "it waits in the residual";
    replica.step(two, 100'000, Values(kSizes, 0.0F));
    EXPECT_EQ(replica.values.arrays[5][5], -std::numeric_limits<float>::infinity());
  });
}

TEST_F(GatheredSparse, GoesOnFromAState) {
  on_ranks([](Communicator& communicator) {
    const SparseChoice choice{.top_k = true, .spars = 0.05, .momentum = 0.5F};
    Replica whole(communicator, true);
    Replica resumed(communicator, true);
    const auto gradients = [&](int step) {
      Values values(kSizes);
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        values.arrays[i] = sparse_gradient(i, kSizes[i], step, communicator.global_rank());
      }
      return values;
    };
    for (int step = 0; step < 3; ++step) whole.step(choice, 70, gradients(step));
    for (std::size_t i = 0; i < kSizes.size(); ++i) {  // in place: the reducer knows the addresses
      std::copy(whole.values.arrays[i].begin(), whole.values.arrays[i].end(),
                resumed.values.arrays[i].begin());
    }
    resumed.compressor->load_state(whole.compressor->state());
    for (int step = 3; step < 5; ++step) {
      whole.step(choice, 70, gradients(step));
      resumed.step(choice, 70, gradients(step));
      EXPECT_EQ(resumed.values, whole.values);
    }
  });
}

}  // namespace
}  // namespace tutti::test::gathered_sparse_test
