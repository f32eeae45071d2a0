// Tables and rules in words: what differs is told apart.
#include "ps/table/describe.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace tutti::ps {
namespace {

TEST(Describe, NamesARuleAndItsNumbers) {
  EXPECT_EQ(describe(Rule(Sgd{.lr = 0.1F})), "sgd: lr 0.1");
  EXPECT_EQ(describe(Rule(Momentum{.nesterov = true})),
            "momentum: lr 0.01, momentum 0.9, nesterov");
  EXPECT_EQ(describe(Rule(Adam{})), "adam: lr 0.001, beta1 0.9, beta2 0.999, eps 1e-08");
  EXPECT_EQ(describe(Rule(Adagrad{.row_wise = true})),
            "adagrad: lr 0.01, eps 1e-10, initial_accumulator 0, row_wise");
}

TEST(Describe, TellsNeighboursApart) {
  const float lr = 0.1F;
  EXPECT_NE(describe(Rule(Sgd{lr})), describe(Rule(Sgd{std::nextafter(lr, 1.0F)})));
}

TEST(Describe, HasAllFieldsOfATable) {
  std::set<std::string> texts;
  const auto add = [&](const auto& change) {
    TableSpec spec;
    spec.dim = 16;
    change(spec);
    EXPECT_TRUE(texts.insert(describe(spec)).second) << describe(spec);
  };
  add([](TableSpec&) {});
  add([](TableSpec& spec) { spec.dim = 8; });
  add([](TableSpec& spec) { spec.rule = Adam{}; });
  add([](TableSpec& spec) { spec.initial = Constant{1.0F}; });
  add([](TableSpec& spec) { spec.initial = Uniform{-1.0F, 1.0F}; });
  add([](TableSpec& spec) { spec.initial = Normal{}; });
  add([](TableSpec& spec) { spec.entry = AdmitProbability{0.5}; });
  add([](TableSpec& spec) { spec.entry = AdmitCount{2}; });
  add([](TableSpec& spec) { spec.entry = AdmitShowClick{}; });
  add([](TableSpec& spec) { spec.eviction.max_age = 1; });
  add([](TableSpec& spec) { spec.eviction.max_bytes = 1; });
  add([](TableSpec& spec) { spec.eviction.min_score = 1; });
  add([](TableSpec& spec) { spec.eviction.decay = 0.5F; });
  add([](TableSpec& spec) { spec.eviction.every = 1; });
  add([](TableSpec& spec) { spec.dict_size = 10; });
  add([](TableSpec& spec) { spec.padding_idx = 0; });
  add([](TableSpec& spec) { spec.padding_idx = -1; });
  add([](TableSpec& spec) { spec.split = Split::mod; });
  add([](TableSpec& spec) { spec.consistent_rows = true; });
}

}  // namespace
}  // namespace tutti::ps
