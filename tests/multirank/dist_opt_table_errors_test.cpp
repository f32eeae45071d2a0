// DistOpt's tables: what is refused, and what a pass that failed has left.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "multirank/dist_opt_table_model.hpp"

namespace tutti::test {
namespace {

class DistOptTableErrors : public RankTest {};

TEST_F(DistOptTableErrors, BadRowsAreRefusedAndChangeNothing) {
  on_ranks([](Communicator& communicator) {
    TableModel model;
    const TableModel before;
    DistOptions large;  // one bucket: nothing is sent before the end of a pass
    large.missing_as_zero = true;
    DistOpt opt = over(communicator, large);
    opt.register_parameters(model.parameters(true));
    const std::vector<float> some(6, 1.0F);
    const auto refused = [&](ConstView indices, std::int64_t values, std::int64_t width,
                             const std::string& message, std::size_t parameter = kTable) {
      const ConstView rows = ConstView(std::span(some)).part(0, values);
      const std::string text = message_of([&] {
        opt.backward_and_update([&](const Emit& emit) {
          emit(model.values.view(parameter), Gradient(indices, rows, width));
        });
      });
      EXPECT_TRUE(contains(text, "the gradient of parameter 'p" + message)) << text;
    };
    const std::vector<std::int64_t> indices{1, kRows, -1};
    const auto from = [&](std::int64_t first, std::int64_t count) {
      return ConstView(std::span(indices)).part(first, count);
    };
    refused(from(0, 2), 6, kWidth, "1' has row 40, the parameter 40 rows");
    refused(from(2, 1), 3, kWidth, "1' has row -1, the parameter 40 rows");
    refused(from(0, 2), 3, kWidth, "1' has 2 indices of i64, but needs 1 of i64");
    refused(from(0, 1), 4, kWidth, "1' has 4 elements, which are no rows of 3");
    refused(from(0, 1), 4, 4, "1' has rows of 4 elements, the parameter of 3");
    refused(from(0, 1), 4, 4, "2' has rows of 4 elements, the parameter 7 elements", 2);
    refused({nullptr, 1, DType::i64}, 3, kWidth, "1' has 1 indices at a null address");
    refused({indices.data(), 1, DType::i64, {DeviceKind::cuda, 1}}, 3, kWidth,
            "1' has indices on GPU 1");
    EXPECT_EQ(model.values, before.values);
    opt.backward_and_update([](const Emit&) {});
    EXPECT_EQ(model.values, before.values);
  });
}

TEST_F(DistOptTableErrors, WhatAFailedPassHasLeftIsForgotten) {
  on_ranks([](Communicator& communicator) {
    TableAlone table;
    auto sgd = std::make_shared<SGD>(SgdOptions{.lr = 1.0F, .momentum = 0.5F});
    DistOpt opt = over(communicator, sgd);
    opt.register_parameters(table.parameters());
    const std::vector<float> whole(kRows * kWidth, 5.0F);
    const std::vector<std::int64_t> indices{7};
    const std::vector<float> row(kWidth, 1.0F);
    for (const Gradient& gradient :
         {Gradient(std::span(whole)), Gradient(std::span(indices), std::span(row), kWidth)}) {
      EXPECT_THROW(opt.backward_and_update([&](const Emit& emit) {
        emit(table.view(), gradient);
        throw std::runtime_error("no more words");
      }),
                   std::runtime_error);
    }
    const std::vector<std::int64_t> other{3};
    opt.backward_and_update([&](const Emit& emit) {
      emit(table.view(), Gradient(std::span(other), std::span(row), kWidth));
    });
    std::vector<float> expected(kRows * kWidth, 0.0F);
    std::fill_n(expected.begin() + 3 * kWidth, kWidth, -1.0F);
    EXPECT_EQ(table.elements(), expected);
  });
}

TEST_F(DistOptTableErrors, BadTablesAreRefused) {
  on_ranks([](Communicator& communicator) {
    TableModel model;
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

/** The table comes first in the memory of gradients, and has none in this pass. */
TEST_F(DistOptTableErrors, BucketsBehindATableDoNotWaitForIt) {
  if (ranks() == 1) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& communicator) {
    Values values({30, 30, static_cast<std::size_t>(kRows * kWidth)});
    std::vector<Parameter> parameters = values.parameters();
    parameters[2].row_elements = kWidth;
    DistOptions options = buckets_of(30);
    options.missing_as_zero = true;
    DistOpt opt = over(communicator, options);
    const std::vector<float> ones(30, 1.0F);
    bool registered = false;  // not where another rank has failed before
    const std::string first = message_of<std::exception>([&] {
      opt.register_parameters(parameters);
      registered = true;
      opt.backward_and_update([&](const Emit& emit) {
        emit(values.view(1), std::span<const float>(ones));  // a bucket, which is sent
        throw std::runtime_error("no more words");
      });
    });
    EXPECT_TRUE(contains(first, "no more words")) << first;
    if (!registered) return;
    const std::string second =
        message_of<CommunicationError>([&] { opt.backward_and_update([](const Emit&) {}); });
    EXPECT_TRUE(contains(second, "an earlier step of this DistOpt failed half-way")) << second;
  });
}

}  // namespace
}  // namespace tutti::test
