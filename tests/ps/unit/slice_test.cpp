// How dense parameters are cut, and which servers have the blocks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "ps/dense/layout.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/dense.hpp"

namespace tutti::ps {
namespace {

DenseParameter parameter(std::string name, std::vector<std::int64_t> shape) {
  DenseParameter made;
  made.name = std::move(name);
  made.shape = std::move(shape);
  return made;
}

std::vector<std::int64_t> counts_of(const std::vector<std::int64_t>& shape, int servers,
                                    std::int64_t min_block_size = 8192) {
  Slicing slicing;
  slicing.min_block_size = min_block_size;
  const std::vector parameters{parameter("w", shape)};
  std::vector<std::int64_t> counts;
  std::int64_t offset = 0;
  for (const Block& block : slice(parameters, servers, slicing)) {
    EXPECT_EQ(block.offset, offset);
    EXPECT_EQ(block.number, std::ssize(counts));
    offset += block.count;
    counts.push_back(block.count);
  }
  return counts;
}

using Counts = std::vector<std::int64_t>;

TEST(Slice, CutsAsPaddleDoes) {
  // What slice_variable() of Paddle 1.8.5 returns.
  EXPECT_EQ(counts_of({8191}, 4), Counts({8191}));
  EXPECT_EQ(counts_of({16383}, 4), Counts({16383}));
  EXPECT_EQ(counts_of({16384}, 4), Counts({8192, 8192}));
  EXPECT_EQ(counts_of({100'000}, 3), Counts({33334, 33334, 33332}));
  EXPECT_EQ(counts_of({1000, 100}, 3), Counts({33400, 33400, 33200}));
  EXPECT_EQ(counts_of({3, 10'000}, 2), Counts({20'000, 10'000}));
  EXPECT_EQ(counts_of({7, 5, 3}, 4, 10), Counts({30, 30, 30, 15}));
  EXPECT_EQ(counts_of({5, 8192}, 4), Counts({16384, 16384, 8192}));  // rounding leaves three
  EXPECT_EQ(counts_of({1, 100'000}, 3), Counts({100'000}));
  EXPECT_EQ(counts_of({}, 3), Counts({1}));
}

TEST(Slice, SharedParametersAreCutBetweenRowsAndPages) {
  const auto shared_counts_of = [](std::vector<std::int64_t> shape, int servers) {
    std::vector parameters{parameter("w", std::move(shape))};
    parameters.front().shared = true;
    Counts counts;
    for (const Block& block : slice(parameters, servers, {})) {
      EXPECT_TRUE(block.shared);
      counts.push_back(block.count);
    }
    return counts;
  };
  EXPECT_EQ(shared_counts_of({784, 1024}, 2), Counts({401'408, 401'408}));
  EXPECT_EQ(shared_counts_of({1024, 784}, 2), Counts({401'408, 401'408}));  // 64 rows are 49 pages
  EXPECT_EQ(shared_counts_of({100'000}, 3), Counts({33'792, 33'792, 32'416}));
  EXPECT_EQ(shared_counts_of({10'000, 3}, 3), Counts({12'288, 12'288, 5424}));
  EXPECT_EQ(shared_counts_of({20, 1001}, 2), Counts({20'020}));  // 1001 pages and more
  EXPECT_EQ(shared_counts_of({2, std::int64_t{1} << 56}, 2), Counts({std::int64_t{1} << 57}));
  EXPECT_EQ(shared_counts_of({5}, 2), Counts({5}));
}

TEST(Slice, SharedBlocksLieOnPages) {
  std::vector parameters{parameter("a", {5}), parameter("b", {5}), parameter("c", {1030})};
  parameters[1].shared = parameters[2].shared = true;
  const std::vector<Block> blocks = slice(parameters, 1, {});
  EXPECT_EQ(begin_of(blocks[0], 5), 5);
  EXPECT_EQ(begin_of(blocks[1], 5), 1024);
  EXPECT_EQ(begin_of(blocks[1], 0), 0);
  EXPECT_EQ(element_count(std::span(blocks).first(2)), 1024 + 5);
  EXPECT_EQ(element_count(blocks), 2048 + 1030);
}

TEST(Slice, LeavesParametersWholeWhereTold) {
  const std::vector parameters{parameter("w", {100'000})};
  Slicing slicing;
  slicing.slice = false;
  const auto blocks = slice(parameters, 3, slicing);
  ASSERT_EQ(blocks.size(), 1U);
  EXPECT_EQ(blocks[0].count, 100'000);
  EXPECT_EQ(blocks[0].name, "w");
}

TEST(Slice, NamesBlocks) {
  const std::vector parameters{parameter("b", {10}), parameter("w", {20'000})};
  const auto blocks = slice(parameters, 2, {});
  ASSERT_EQ(blocks.size(), 3U);
  EXPECT_EQ(blocks[0].name, "b");
  EXPECT_EQ(blocks[1].name, "w.block0");
  EXPECT_EQ(blocks[2].name, "w.block1");
  EXPECT_EQ(blocks[2].parameter, 1);
  EXPECT_EQ(blocks[2].number, 1);
}

std::string refusal_of(const std::vector<DenseParameter>& parameters, const Slicing& slicing,
                       int servers = 2) {
  try {
    lay_out(parameters, servers, slicing);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

TEST(Slice, RefusesWhatMakesNoSense) {
  const auto w = parameter("w", {4});
  EXPECT_EQ(refusal_of({w, w}, {}), "two dense parameters have the name 'w'");
  EXPECT_EQ(refusal_of({parameter("", {4})}, {}), "a dense parameter has no name");
  EXPECT_EQ(refusal_of({parameter("w\nv", {4})}, {}),
            "the name of a dense parameter has a line break, behind 'w'");
  EXPECT_EQ(refusal_of({parameter("w", {4, 0})}, {}),
            "dimension 1 of parameter 'w' is 0, but must be at least 1");
  EXPECT_NE(refusal_of({parameter("w", {std::int64_t{1} << 40U, std::int64_t{1} << 40U})}, {}),
            "none");
  auto few = w;
  few.initial = {1.0F};
  EXPECT_EQ(refusal_of({few}, {}), "parameter 'w' has 4 elements, but 1 initial values");
  auto rows = w;
  rows.rule = Adagrad{.row_wise = true};
  EXPECT_NE(refusal_of({rows}, {}).find("row-wise Adagrad"), std::string::npos);
  rows.rule = Sgd{.lr = -1.0F};
  EXPECT_EQ(refusal_of({rows}, {}),
            "parameter 'w': lr of Sgd is -1, but must be finite and not negative");
  Slicing slicing;
  slicing.min_block_size = 0;
  EXPECT_EQ(refusal_of({w}, slicing), "min_block_size is 0, but must be at least 1");
  EXPECT_EQ(refusal_of({w}, {}, 0), "servers is 0, but must be at least 1");
}

TEST(Dispatch, RoundRobinTakesServersInTurns) {
  const std::vector parameters{parameter("a", {3}), parameter("w", {20'000}), parameter("z", {1})};
  const DenseLayout layout = lay_out(parameters, 3, {});
  ASSERT_EQ(layout.size(), 3U);
  EXPECT_EQ(layout[0].size(), 2U);  // a, z
  EXPECT_EQ(layout[0][1].name, "z");
  EXPECT_EQ(layout[1][0].name, "w.block0");
  EXPECT_EQ(layout[2][0].name, "w.block1");
  EXPECT_EQ(element_count(layout[0]), 4);
}

TEST(Dispatch, HashesOfNamesAreTheSameEverywhere) {
  std::vector<Block> blocks(3);
  blocks[0].name = "weight.block0";
  blocks[1].name = "weight.block1";
  blocks[2].name = "bias";
  // FNV-1a of 64 bits, modulo 1000.
  EXPECT_EQ(hash_name()(blocks, 1000), std::vector<int>({22, 233, 156}));
}

TEST(Dispatch, AServerMayHaveNothing) {
  const std::vector parameters{parameter("a", {3})};
  const DenseLayout layout = lay_out(parameters, 5, {});
  EXPECT_EQ(layout.size(), 5U);
  EXPECT_EQ(
      std::count_if(layout.begin(), layout.end(), [](const auto& own) { return own.empty(); }), 4);
}

TEST(Dispatch, ChecksWhatACustomOneAnswers) {
  const std::vector parameters{parameter("a", {3}), parameter("b", {3})};
  const auto refused = [&](const std::vector<int>& answer) {
    Slicing slicing;
    slicing.dispatcher = [answer](std::span<const Block>, int) { return answer; };
    return refusal_of(parameters, slicing);
  };
  EXPECT_EQ(refused({1, 0}), "none");
  EXPECT_EQ(refused({1}), "the dispatcher chose 1 servers for 2 blocks");
  EXPECT_EQ(refused({1, 2}), "the dispatcher chose server 2 for 'b', but there are 2 servers");
  EXPECT_EQ(refused({-1, 0}), "the dispatcher chose server -1 for 'a', but there are 2 servers");
  Slicing none;
  none.dispatcher = nullptr;
  EXPECT_EQ(refusal_of(parameters, none), "dispatcher is empty");
}

TEST(Dispatch, OtherChoicesHaveAnotherHash) {
  const std::vector parameters{parameter("a", {3}), parameter("b", {3})};
  const auto hash = [&](const std::vector<int>& answer) {
    Slicing slicing;
    slicing.dispatcher = [answer](std::span<const Block>, int) { return answer; };
    return hash_of(lay_out(parameters, 2, slicing));
  };
  EXPECT_EQ(hash({0, 1}), hash_of(lay_out(parameters, 2, {})));
  EXPECT_NE(hash({0, 1}), hash({1, 0}));
  EXPECT_NE(hash({0, 1}), hash({0, 0}));
  EXPECT_NE(hash({1, 1}), hash({0, 0}));
}

}  // namespace
}  // namespace tutti::ps
