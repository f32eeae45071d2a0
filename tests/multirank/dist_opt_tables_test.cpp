// DistOpt's tables: a gradient of rows trains as the whole gradient does, to the bit, in every mode
// and with every optimiser, and few bytes travel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "multirank/dist_opt_table_model.hpp"
#include "tutti/adagrad.hpp"
#include "tutti/adam.hpp"

namespace tutti::test {
namespace {

class DistOptTables : public RankTest {};

/** Rows of the table, with indices that are there several times. */
struct Rows {
  std::vector<std::int64_t> indices;
  std::vector<float> values;

  Gradient gradient() const {
    return {std::span<const std::int64_t>(indices), std::span<const float>(values), kWidth};
  }
  std::vector<float> whole() const {
    std::vector<float> all(kRows * kWidth, 0.0F);
    for (std::size_t i = 0; i < values.size(); ++i) {
      all[static_cast<std::size_t>(indices[i / kWidth] * kWidth) + i % kWidth] += values[i];
    }
    return all;
  }
};

/** Whole numbers between hosts, whose sums do not depend on the order. */
float value_of(std::mt19937& random) {
  const auto number = static_cast<float>(random() % 2001) - 1000.0F;
  return world().one_host() ? number / 7.0F : number;
}

Rows rows_of(std::mt19937& random, std::size_t count) {
  Rows rows;
  for (std::size_t i = 0; i < count; ++i) {
    rows.indices.push_back(static_cast<std::int64_t>(random() % kRows));
  }
  for (std::size_t i = 0; i < count * kWidth; ++i) rows.values.push_back(value_of(random));
  return rows;
}

/** What ranks have of the table in a step. */
enum class Has { rows, whole, nothing };

struct Step {
  std::size_t rows;        ///< of rank 0; of the others one less each, if there are any
  Has others = Has::rows;  ///< what all but rank 0 have
};

const std::vector<Step> kSteps{{5}, {9}, {0}, {4, Has::nothing}, {30}, {6, Has::whole}, {7}, {3}};

using Method = std::function<void(DistOpt&, const Backward&)>;

/** One step of two models, which get the same gradients, one of them rows. */
void step_both(Communicator& communicator, std::size_t number, const Step& step,
               const Method& method, DistOpt& by_rows, TableModel& one, DistOpt& whole,
               TableModel& other) {
  const auto rank = static_cast<std::size_t>(communicator.global_rank());
  std::mt19937 random(static_cast<std::uint32_t>(100 * number + rank));
  const Rows rows = rows_of(random, step.rows > rank ? step.rows - rank : 0);
  Values gradients(kSizes);
  for (auto& array : gradients.arrays) {
    for (float& value : array) value = value_of(random);
  }
  const Has has = rank == 0 ? Has::rows : step.others;
  const std::vector<float> all = rows.whole();
  const auto pass = [&](TableModel& model, bool may_have_rows) -> Backward {
    return [&, may_have_rows](const Emit& emit) {
      for (std::size_t i = kSizes.size(); i-- > 0;) {
        if (i != kTable) {
          emit(model.values.view(i), gradients.view(i));
        } else if (has == Has::rows && may_have_rows) {
          emit(model.values.view(i), rows.gradient());
        } else if (has != Has::nothing) {
          emit(model.values.view(i), std::span<const float>(all));
        }
      }
    };
  };
  method(by_rows, pass(one, true));
  method(whole, pass(other, false));
}

DistOptions options() {
  DistOptions options;
  options.missing_as_zero = true;
  options.bucket_elements = 25;
  return options;
}

const Method kUpdate = [](DistOpt& opt, const Backward& run) { opt.backward_and_update(run); };

TEST_F(DistOptTables, TrainAsWholeGradientsDoWithEveryOptimizer) {
  on_ranks([](Communicator& communicator) {
    const std::vector<std::function<std::shared_ptr<Optimizer>()>> makers{
        [] { return std::make_shared<SGD>(SgdOptions{.lr = 0.1F}); },
        [] { return std::make_shared<SGD>(SgdOptions{.lr = 0.1F, .weight_decay = 0.01F}); },
        [] { return std::make_shared<SGD>(SgdOptions{.momentum = 0.9F, .dampening = 0.5F}); },
        [] { return std::make_shared<SGD>(SgdOptions{.momentum = 0.9F, .nesterov = true}); },
        [] { return std::make_shared<Adam>(AdamOptions{.lr = 0.1F}); },
        [] { return std::make_shared<AdamW>(AdamWOptions{.weight_decay = 0.1F}); },
        [] { return std::make_shared<Adagrad>(AdagradOptions{.lr = 0.1F, .lr_decay = 0.1F}); },
        [] { return std::make_shared<Adagrad>(AdagradOptions{.weight_decay = 0.1F}); },
        [] { return std::make_shared<Descent>(); },
    };
    for (std::size_t kind = 0; kind < makers.size(); ++kind) {
      TableModel one;
      TableModel other;
      DistOpt by_rows = over(communicator, makers[kind](), options());
      DistOpt whole = over(communicator, makers[kind](), options());
      const std::vector<View> views = by_rows.register_parameters(one.parameters(true));
      EXPECT_EQ(views[kTable].count, 0);
      EXPECT_EQ(views[0].count, 50);
      whole.register_parameters(other.parameters(false));
      for (std::size_t i = 0; i < kSteps.size(); ++i) {
        step_both(communicator, i, kSteps[i], kUpdate, by_rows, one, whole, other);
        EXPECT_EQ(one.values, other.values) << "optimizer " << kind << ", step " << i;
      }
      EXPECT_EQ(by_rows.state().arrays, whole.state().arrays) << "optimizer " << kind;
      EXPECT_TRUE(same_everywhere(communicator, one.values));
    }
  });
}

/** The modes, and what else a step may be followed by; in 16 bits only where the bits are the same.
 */
std::vector<Method> methods() {
  std::vector<Method> list{
      kUpdate,
      [](DistOpt& opt, const Backward& run) { opt.backward_and_partial_update(run); },
      [](DistOpt& opt, const Backward& run) {
        opt.backward_and_sparse_update(run, std::nullopt, 0.1, true);
      },
      [](DistOpt& opt, const Backward& run) {
        opt.backward_and_sparse_update(run, std::nullopt, 50.0, false);
      },
      [](DistOpt& opt, const Backward& run) {
        opt.backward_and_update(run, 60);  // other buckets
        opt.synchronize();
      },
  };
  if (world().one_host()) {
    list.push_back(
        [](DistOpt& opt, const Backward& run) { opt.backward_and_update_half(run, 100); });
  }
  return list;
}

TEST_F(DistOptTables, TrainAsWholeGradientsDoInAnyOrderOfModes) {
  on_ranks([](Communicator& communicator) {
    const std::vector<Method> modes = methods();
    std::mt19937 random(7);  // the same on all ranks
    for (const float momentum : {0.0F, 0.5F}) {
      TableModel one;
      TableModel other;
      const SgdOptions sgd{.lr = 1.0F, .momentum = momentum};
      DistOpt by_rows = over(communicator, std::make_shared<SGD>(sgd), options());
      DistOpt whole = over(communicator, std::make_shared<SGD>(sgd), options());
      by_rows.register_parameters(one.parameters(true));
      whole.register_parameters(other.parameters(false));
      for (std::size_t i = 0; i < 60; ++i) {
        const std::size_t mode = random() % modes.size();
        const Step& step = kSteps[random() % kSteps.size()];
        step_both(communicator, i, step, modes[mode], by_rows, one, whole, other);
        ASSERT_EQ(one.values, other.values) << "mode " << mode << ", step " << i;
      }
    }
  });
}

TEST_F(DistOptTables, TrainAsWholeGradientsDoIn16Bits) {
  on_ranks([](Communicator& communicator) {
    for (const DType half : {DType::f16, DType::bf16}) {
      DistOptions in_half = options();
      in_half.half = half;
      TableModel one;
      TableModel other;
      DistOpt by_rows = over(communicator, in_half);
      DistOpt whole = over(communicator, in_half);
      by_rows.register_parameters(one.parameters(true));
      whole.register_parameters(other.parameters(false));
      for (std::size_t i = 0; i < kSteps.size(); ++i) {
        const Method method = [&](DistOpt& opt, const Backward& run) {
          opt.backward_and_update_half(run, std::nullopt, i % 2 == 0, 30.0F);
        };
        one.values = other.values;
        step_both(communicator, i, kSteps[i], method, by_rows, one, whole, other);
        if (world().one_host()) {
          EXPECT_EQ(one.values, other.values) << name_of(half) << ", step " << i;
        }
        for (std::size_t j = 0; j < kRows * kWidth; ++j) {  // between hosts they round once more
          EXPECT_NEAR(one.values.arrays[kTable][j], other.values.arrays[kTable][j], 8.0F) << j;
        }
      }
      const auto rank = static_cast<std::int64_t>(communicator.global_rank());
      const std::int64_t rows = std::max<std::int64_t>(3 - rank, 0) * (8 + kWidth * 2);
      EXPECT_LE(by_rows.bytes_per_step(), (50 + 7 + 20) * 2 + 3 * 64 + rows);
      EXPECT_TRUE(same_everywhere(communicator, one.values));
    }
  });
}

TEST_F(DistOptTables, CountRowsThatAreNotFiniteIn16Bits) {
  on_ranks([](Communicator& communicator) {
    TableAlone table;
    DistOpt opt = over(communicator);
    opt.register_parameters(table.parameters());
    const std::vector<std::int64_t> indices{4, 9};
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> values{1, infinity, 2, 1000, 3, -1000};
    opt.backward_and_update_half(
        [&](const Emit& emit) {
          emit(table.view(), Gradient(std::span(indices), std::span(values), kWidth));
        },
        std::nullopt, true, 64.0F);
    EXPECT_EQ(opt.statistics().non_finite, 1);
    EXPECT_NEAR(table.elements()[4 * kWidth], -1.0F, 0.01F);
    EXPECT_EQ(table.elements()[4 * kWidth + 1], -infinity);
    EXPECT_NEAR(table.elements()[9 * kWidth], -64.0F, 0.1F);
    EXPECT_NEAR(table.elements()[9 * kWidth + 2], 64.0F, 0.1F);
  });
}

TEST_F(DistOptTables, AreFoundByTheFirstPass) {
  on_ranks([](Communicator& communicator) {
    TableModel one;
    TableModel other;
    DistOpt by_rows = over(communicator, options());
    DistOpt whole = over(communicator, options());
    for (std::size_t i = 0; i < 3; ++i) {
      step_both(communicator, i, {5}, kUpdate, by_rows, one, whole, other);
      EXPECT_EQ(one.values, other.values) << i;
    }
    const auto rank = static_cast<std::int64_t>(communicator.global_rank());
    const std::int64_t most = std::max<std::int64_t>(5 - rank, 0) * (8 + kWidth * 4);
    EXPECT_LE(by_rows.bytes_per_step(), (50 + 7 + 20) * 4 + 4 * 60 + most);
    EXPECT_GE(whole.bytes_per_step(), (50 + 7 + 20 + kRows * kWidth) * 4);
    EXPECT_LT(by_rows.statistics().density, 1.0);
  });
}

TEST_F(DistOptTables, RowsOfWhatIsNoTableTravelWhole) {
  on_ranks([](Communicator& communicator) {
    TableModel one;
    TableModel other;
    DistOpt by_rows = over(communicator, options());
    DistOpt whole = over(communicator, options());
    by_rows.register_parameters(one.parameters(false));
    whole.register_parameters(other.parameters(false));
    step_both(communicator, 0, {5}, kUpdate, by_rows, one, whole, other);
    EXPECT_EQ(one.values, other.values);
    EXPECT_EQ(by_rows.bytes_per_step(), whole.bytes_per_step());
  });
}

TEST_F(DistOptTables, ATableAloneTakesSteps) {
  on_ranks([](Communicator& communicator) {
    TableAlone table;
    DistOpt opt = over(communicator);
    opt.register_parameters(table.parameters());
    const std::int64_t rank = communicator.global_rank();
    const auto ranks = static_cast<float>(communicator.world_size());
    const std::vector<std::int64_t> indices{rank, 39, 39};  // one of its own, one of all, twice
    const std::vector<float> values(3 * kWidth, ranks);
    opt.backward_and_update([&](const Emit& emit) {
      emit(table.view(), Gradient(std::span(indices), std::span(values), kWidth));
    });
    std::vector<float> expected(kRows * kWidth, 0.0F);
    std::fill_n(expected.begin(), communicator.world_size() * kWidth, -1.0F);
    std::fill_n(expected.begin() + 39 * kWidth, kWidth, -2.0F * ranks);
    EXPECT_EQ(table.elements(), expected);
  });
}

}  // namespace
}  // namespace tutti::test
