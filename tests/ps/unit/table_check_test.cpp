// A table that makes no sense is refused by its name, the field and its value.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "ps/table/table.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

struct Case {
  std::string says;
  std::function<void(TableSpec&)> spoil;
};

TEST(TableCheck, NamesTheFieldAndItsValue) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<Case> cases{
      {"name is empty", [](TableSpec& spec) { spec.name.clear(); }},
      {"name has a line break, behind 'a'", [](TableSpec& spec) { spec.name = "a\nb"; }},
      {"dim is 0", [](TableSpec& spec) { spec.dim = 0; }},
      {"dim is -4", [](TableSpec& spec) { spec.dim = -4; }},
      {"dim is 1048577", [](TableSpec& spec) { spec.dim = 1'048'577; }},
      {"dict_size is -1", [](TableSpec& spec) { spec.dict_size = -1; }},
      {"lr of Sgd is -1", [](TableSpec& spec) { spec.rule = Sgd{-1.0F}; }},
      {"lr of Sgd is nan", [nan](TableSpec& spec) { spec.rule = Sgd{nan}; }},
      {"momentum of Momentum is -0.5",
       [](TableSpec& spec) {
         spec.rule = Momentum{0.1F, -0.5F};
       }},
      {"nesterov of Momentum is true",
       [](TableSpec& spec) {
         spec.rule = Momentum{0.1F, 0.0F, true};
       }},
      {"eps of Adagrad is -1",
       [](TableSpec& spec) {
         spec.rule = Adagrad{0.1F, -1.0F};
       }},
      {"beta2 of Adam is 1",
       [](TableSpec& spec) {
         spec.rule = Adam{0.1F, 0.9F, 1.0F};
       }},
      {"value of Constant is nan", [nan](TableSpec& spec) { spec.initial = Constant{nan}; }},
      {"high of Uniform is 1, but must not be less than low, which is 2",
       [](TableSpec& spec) {
         spec.initial = Uniform{2.0F, 1.0F};
       }},
      {"deviation of Normal is -1",
       [](TableSpec& spec) {
         spec.initial = Normal{0.0F, -1.0F};
       }},
      {"probability of the entry rule is 1.5,",
       [](TableSpec& spec) { spec.entry = AdmitProbability{1.5}; }},
      {"count of the entry rule is 0", [](TableSpec& spec) { spec.entry = AdmitCount{0}; }},
      {"threshold of the entry rule is nan",
       [nan](TableSpec& spec) {
         spec.entry = AdmitShowClick{0.1F, 1.0F, nan};
       }},
      {"max_age of the eviction is -1", [](TableSpec& spec) { spec.eviction.max_age = -1; }},
      {"max_bytes of the eviction is -1", [](TableSpec& spec) { spec.eviction.max_bytes = -1; }},
      {"decay of the eviction is 1.5", [](TableSpec& spec) { spec.eviction.decay = 1.5F; }},
      {"every of the eviction is 0", [](TableSpec& spec) { spec.eviction.every = 0; }},
  };
  for (const Case& one : cases) {
    TableSpec spec{.name = "items", .dim = 16};
    ASSERT_NO_THROW(check(spec));
    one.spoil(spec);
    try {
      check(spec);
      ADD_FAILURE() << "not refused: " << one.says;
    } catch (const InvalidArgument& error) {
      const std::string text = error.what();
      EXPECT_NE(text.find(one.says), std::string::npos) << text << " lacks: " << one.says;
      EXPECT_TRUE(spec.name != "items" || text.starts_with("table 'items': ")) << text;
    }
  }
}

}  // namespace
}  // namespace tutti::ps
