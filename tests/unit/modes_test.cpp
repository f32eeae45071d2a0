// The table of DistOpt's modes.
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "opt/step_plan.hpp"
#include "tutti/dist_options.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

TEST(Modes, EachIsFoundByItsName) {
  std::set<std::string> names;
  for (const NamedMode& mode : named_modes()) {
    EXPECT_EQ(&named_mode(mode.name), &mode);
    EXPECT_EQ(method_of(mode.mode), mode.method);
    EXPECT_EQ(mode.half.has_value(), mode.mode == DistMode::half);
    EXPECT_TRUE(names.emplace(mode.name).second) << mode.name;
  }
  EXPECT_EQ(names.size(), 6U);
  EXPECT_EQ(method_of(DistMode::custom), "backward_and_custom_update");
}

TEST(Modes, OthersAreRefusedWithAListOfTheNames) {
  for (const char* name : {"fp8", "", "FP32", "custom"}) {
    try {
      named_mode(name);
      FAIL() << name;
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(error.what(), "dist_option is '" + std::string(name) +
                                  "', but must be fp32, fp16, bf16, partialUpdate, sparseTopK or "
                                  "sparseThreshold");
    }
  }
}

TEST(Modes, SayWhichOptionsTheyRead) {
  EXPECT_EQ(named_mode("bf16").half, DType::bf16);
  EXPECT_TRUE(named_mode("bf16").takes("clip_Value"));
  EXPECT_FALSE(named_mode("fp32").takes("clip_Value"));
  EXPECT_TRUE(named_mode("sparseTopK").takes("warm_up_epochs"));
  EXPECT_FALSE(named_mode("sparseThreshold").takes("warm_up_epochs"));
  EXPECT_TRUE(named_mode("sparseThreshold").takes("momentum_correction"));
}

}  // namespace
}  // namespace tutti
