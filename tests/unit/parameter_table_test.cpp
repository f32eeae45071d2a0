// Tests of the identity of parameters, and of the order in which they are emitted.
#include "opt/parameter_table.hpp"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "opt/emission_order.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

using Order = ParameterTable::Order;

/** The message of the InvalidArgument that `action` throws. */
template <class Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "nothing was refused";
}

class ParameterTableTest : public ::testing::Test {
 protected:
  View view(std::size_t start, std::size_t count) {
    return std::span(memory_).subspan(start, count);
  }
  std::vector<Parameter> abc() {
    return {{view(0, 10), "a"}, {view(10, 20), "b"}, {view(30, 5), ""}};
  }

  std::array<float, 64> memory_{};
};

TEST_F(ParameterTableTest, FlatSpaceFollowsTheListWhateverTheOrder) {
  const ParameterTable table(abc(), Order::last_first);
  ASSERT_EQ(table.size(), 3U);
  EXPECT_EQ(table.elements(), 35);
  EXPECT_EQ(table.ranges()[0].offset, 30);
  EXPECT_EQ(table.ranges()[0].count, 5);
  EXPECT_EQ(table.ranges()[0].parameter, memory_.data() + 30);
  EXPECT_EQ(table.ranges()[2].offset, 0);
  EXPECT_EQ(table.find(view(10, 20)), 1U);
  EXPECT_EQ(table.name(1), "parameter 'b'");
  EXPECT_EQ(table.name(0).substr(0, 26), "parameter #2 (5 elements a");
  EXPECT_EQ(ParameterTable(abc(), Order::as_listed).range(1).offset, 10);
}

TEST_F(ParameterTableTest, LeavesOutParametersWithoutElements) {
  const std::vector<Parameter> parameters{{View(), "none"}, {view(0, 4), "some"}, {View(), ""}};
  const ParameterTable table(parameters, Order::as_listed);
  EXPECT_EQ(table.size(), 1U);
  EXPECT_EQ(table.name(0), "parameter 'some'");
}

TEST_F(ParameterTableTest, RefusesWhatIsNotRegistered) {
  const ParameterTable table(abc(), Order::last_first);
  EXPECT_NE(refusal([&] { table.find(view(40, 3)); }).find("(3 elements at 0x"), std::string::npos);
  EXPECT_EQ(refusal([&] { table.find(view(10, 19)); }),
            "parameter 'b' was registered with 20 elements of f32 and now has 19 of f32");
}

TEST_F(ParameterTableTest, RefusesOtherTypesAndDevices) {
  const auto table_of = [](const View& view) {
    const std::vector<Parameter> parameters{{view, "w"}};
    return ParameterTable(parameters, Order::as_listed);
  };
  EXPECT_EQ(refusal([&] {
              table_of({memory_.data(), 2, DType::f64});
            }),
            "parameter 'w' has dtype f64; an optimiser updates f32");
  EXPECT_EQ(refusal([&] {
              const std::vector<Parameter> parameters{
                  {{memory_.data(), 2, DType::f32}, "v"},
                  {{memory_.data() + 2, 2, DType::f32, {DeviceKind::cuda, 1}}, "w"}};
              ParameterTable(parameters, Order::as_listed);
            }),
            "parameter 'w' is on GPU 1, parameter 'v' on the CPU");
  EXPECT_EQ(refusal([&] {
              table_of({memory_.data(), -2, DType::f32});
            }),
            "parameter 'w' has -2 elements");
  EXPECT_EQ(refusal([&] {
              table_of({nullptr, 2, DType::f32});
            }),
            "parameter 'w' has 2 elements at a null address");
}

TEST_F(ParameterTableTest, RefusesParametersThatShareMemory) {
  const std::vector<Parameter> overlapping{{view(9, 5), "tail"}, {view(0, 10), "head"}};
  EXPECT_EQ(refusal([&] { ParameterTable(overlapping, Order::last_first); }),
            "parameter 'head' and parameter 'tail' share memory");
  const std::vector<Parameter> twice{{view(0, 10), "a"}, {view(20, 1), "b"}, {view(0, 10), "a"}};
  EXPECT_EQ(refusal([&] { ParameterTable(twice, Order::last_first); }),
            "parameter 'a' is there twice, as #0 and #2");
}

TEST_F(ParameterTableTest, ChecksGradients) {
  const ParameterTable table(abc(), Order::as_listed);
  EXPECT_EQ(refusal([&] { table.check_gradient(0, view(40, 9)); }),
            "the gradient of parameter 'a' has 9 elements, the parameter 10");
  EXPECT_EQ(refusal([&] { table.check_gradient(0, ConstView(memory_.data(), 10, DType::f16)); }),
            "the gradient of parameter 'a' has dtype f16; an optimiser updates f32");
}

class EmissionOrderTest : public ParameterTableTest {
 protected:
  static void pass(EmissionOrder& order, const std::vector<std::size_t>& indices) {
    order.begin();
    for (const std::size_t index : indices) order.emit(index);
    order.end();
  }

  ParameterTable table_{abc(), Order::as_listed};
};

TEST_F(EmissionOrderTest, FirstPassSetsTheOrder) {
  EmissionOrder order(table_, false);
  pass(order, {1, 2, 0});
  pass(order, {1, 2, 0});
  EXPECT_EQ(
      refusal([&] {
        pass(order, {1, 0, 2});
      }),
      "the backward pass emitted parameter 'a' where the first one emitted " + table_.name(2));
  pass(order, {1, 2, 0});
}

TEST_F(EmissionOrderTest, NamesTheFirstMissingParameter) {
  EmissionOrder order(table_, false);
  EXPECT_EQ(refusal([&] {
              pass(order, {0, 2});
            }).substr(0, 46),
            "the backward pass did not emit parameter 'b' (");
  pass(order, {2, 0, 1});  // a pass that failed sets nothing
  EXPECT_EQ(refusal([&] { pass(order, {2}); }).substr(0, 46),
            "the backward pass did not emit parameter 'a' (");
}

TEST_F(EmissionOrderTest, RefusesRepetition) {
  EmissionOrder order(table_, true);
  EXPECT_EQ(refusal([&] {
              pass(order, {1, 1});
            }),
            "parameter 'b' was emitted twice in one backward pass");
}

TEST_F(EmissionOrderTest, WhereMissingIsAllowedTheRestKeepsItsOrder) {
  EmissionOrder order(table_, true);
  pass(order, {2, 0});
  pass(order, {0});
  pass(order, {});
  pass(order, {1, 2, 0});  // 1 was not in the first pass and may come anywhere
  pass(order, {2, 1, 0});
  EXPECT_EQ(refusal([&] {
              pass(order, {0, 2});
            }),
            "the backward pass emitted " + table_.name(2) +
                " after parameter 'a', the first one before it");
}

}  // namespace
}  // namespace tutti
