// DistOpt's tables: a gradient of rows trains as the whole gradient does, to the bit, in every mode
// and with every optimiser, and few bytes travel.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "multirank/dist_opt_model.hpp"
#include "tutti/adagrad.hpp"
#include "tutti/adam.hpp"

namespace tutti::test {
namespace {

class DistOptTables : public RankTest {};

constexpr std::int64_t kWidth = 3;
constexpr std::int64_t kRows = 40;
constexpr std::size_t kTable = 1;  // of the parameters
const std::vector<std::size_t> kSizes{50, kRows* kWidth, 7, 20};

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

struct Model {
  Values values{kSizes, 1.0F};
  std::vector<Parameter> parameters(bool has_table) {
    std::vector<Parameter> list = values.parameters();
    if (has_table) list[kTable].row_elements = kWidth;
    return list;
  }
};

using Method = std::function<void(DistOpt&, const Backward&)>;

/** One step of two models, which get the same gradients, one of them rows. */
void step_both(Communicator& communicator, std::size_t number, const Step& step,
               const Method& method, DistOpt& by_rows, Model& one, DistOpt& whole, Model& other) {
  const auto rank = static_cast<std::size_t>(communicator.global_rank());
  std::mt19937 random(static_cast<std::uint32_t>(100 * number + rank));
  const Rows rows = rows_of(random, step.rows > rank ? step.rows - rank : 0);
  Values gradients(kSizes);
  for (auto& array : gradients.arrays) {
    for (float& value : array) value = value_of(random);
  }
  const Has has = rank == 0 ? Has::rows : step.others;
  const std::vector<float> all = rows.whole();
  const auto pass = [&](Model& model, bool may_have_rows) -> Backward {
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
      Model one;
      Model other;
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
      Model one;
      Model other;
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
      Model one;
      Model other;
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
    Values table({static_cast<std::size_t>(kRows * kWidth)}, 0.0F);
    DistOpt opt = over(communicator);
    std::vector<Parameter> parameters = table.parameters();
    parameters[0].row_elements = kWidth;
    opt.register_parameters(parameters);
    const std::vector<std::int64_t> indices{4, 9};
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> values{1, infinity, 2, 1000, 3, -1000};
    opt.backward_and_update_half(
        [&](const Emit& emit) {
          emit(table.view(0), Gradient(std::span(indices), std::span(values), kWidth));
        },
        std::nullopt, true, 64.0F);
    EXPECT_EQ(opt.statistics().non_finite, 1);
    EXPECT_NEAR(table.arrays[0][4 * kWidth], -1.0F, 0.01F);
    EXPECT_EQ(table.arrays[0][4 * kWidth + 1], -infinity);
    EXPECT_NEAR(table.arrays[0][9 * kWidth], -64.0F, 0.1F);
    EXPECT_NEAR(table.arrays[0][9 * kWidth + 2], 64.0F, 0.1F);
  });
}

TEST_F(DistOptTables, AreFoundByTheFirstPass) {
  on_ranks([](Communicator& communicator) {
    Model one;
    Model other;
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
    Model one;
    Model other;
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
    Values table({static_cast<std::size_t>(kRows * kWidth)}, 0.0F);
    DistOpt opt = over(communicator);
    std::vector<Parameter> parameters = table.parameters();
    parameters[0].row_elements = kWidth;
    opt.register_parameters(parameters);
    const std::int64_t rank = communicator.global_rank();
    const auto ranks = static_cast<float>(communicator.world_size());
    const std::vector<std::int64_t> indices{rank, 39, 39};  // one of its own, one of all, twice
    const std::vector<float> values(3 * kWidth, ranks);
    opt.backward_and_update([&](const Emit& emit) {
      emit(table.view(0), Gradient(std::span(indices), std::span(values), kWidth));
    });
    std::vector<float> expected(kRows * kWidth, 0.0F);
    std::fill_n(expected.begin(), communicator.world_size() * kWidth, -1.0F);
    std::fill_n(expected.begin() + 39 * kWidth, kWidth, -2.0F * ranks);
    EXPECT_EQ(table.arrays[0], expected);
  });
}

TEST_F(DistOptTables, BadRowsAreRefusedAndChangeNothing) {
  on_ranks([](Communicator& communicator) {
    Model model;
    const Model before;
    DistOptions large;  // one bucket: nothing is sent before the end of a pass
    large.missing_as_zero = true;
    DistOpt opt = over(communicator, large);
    opt.register_parameters(model.parameters(true));
    const auto refused = [&](const std::vector<std::int64_t>& indices, std::size_t values,
                             std::int64_t width, const std::string& message) {
      const std::vector<float> some(values, 1.0F);
      const std::string text = message_of([&] {
        opt.backward_and_update([&](const Emit& emit) {
          emit(model.values.view(kTable), Gradient(std::span(indices), std::span(some), width));
        });
      });
      EXPECT_TRUE(contains(text, "the gradient of parameter 'p1' has " + message)) << text;
    };
    refused({1, kRows}, 6, kWidth, "row 40, the parameter 40 rows");
    refused({-1}, 3, kWidth, "row -1, the parameter 40 rows");
    refused({1, 2}, 3, kWidth, "2 indices of i64, but needs 1 of i64");
    refused({1}, 4, kWidth, "4 elements, which are no rows of 3");
    refused({1}, 4, 4, "rows of 4 elements, the parameter of 3");
    EXPECT_EQ(model.values, before.values);
    opt.backward_and_update([](const Emit&) {});
    EXPECT_EQ(model.values, before.values);
  });
}

TEST_F(DistOptTables, WhatAFailedPassHasLeftIsForgotten) {
  on_ranks([](Communicator& communicator) {
    Values table({static_cast<std::size_t>(kRows * kWidth)}, 0.0F);
    auto sgd = std::make_shared<SGD>(SgdOptions{.lr = 1.0F, .momentum = 0.5F});
    DistOpt opt = over(communicator, sgd);
    std::vector<Parameter> parameters = table.parameters();
    parameters[0].row_elements = kWidth;
    opt.register_parameters(parameters);
    const std::vector<float> whole(kRows * kWidth, 5.0F);
    const std::vector<std::int64_t> indices{7};
    const std::vector<float> row(kWidth, 1.0F);
    for (const Gradient& gradient :
         {Gradient(std::span(whole)), Gradient(std::span(indices), std::span(row), kWidth)}) {
      EXPECT_THROW(opt.backward_and_update([&](const Emit& emit) {
        emit(table.view(0), gradient);
        throw std::runtime_error("no more words");
      }),
                   std::runtime_error);
    }
    const std::vector<std::int64_t> other{3};
    opt.backward_and_update([&](const Emit& emit) {
      emit(table.view(0), Gradient(std::span(other), std::span(row), kWidth));
    });
    std::vector<float> expected(kRows * kWidth, 0.0F);
    std::fill_n(expected.begin() + 3 * kWidth, kWidth, -1.0F);
    EXPECT_EQ(table.arrays[0], expected);
  });
}

TEST_F(DistOptTables, BadTablesAreRefused) {
  on_ranks([](Communicator& communicator) {
    Model model;
    DistOpt opt = over(communicator);
    for (const std::int64_t row : {7, -1}) {
      std::vector<Parameter> parameters = model.parameters(true);
      parameters[kTable].row_elements = row;
      const std::string text = message_of([&] { opt.register_parameters(parameters); });
      EXPECT_TRUE(contains(text, "which are no rows of " + std::to_string(row))) << text;
    }
    if (communicator.world_size() == 1) return;
    const std::string text = message_of(
        [&] { opt.register_parameters(model.parameters(communicator.global_rank() == 1)); });
    EXPECT_TRUE(contains(text, "the parameters of rank 1 are not those of rank 0")) << text;
    EXPECT_TRUE(contains(text, "tables of rows")) << text;
  });
}

}  // namespace
}  // namespace tutti::test
