// What a server makes of a push of dense gradients that another process has written.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ps/modes/stores.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

using tutti::test::text_of;

/** A push of `elements`, said to be `count`, for these blocks. */
class Push {
 public:
  Push(const std::vector<float>& elements, const std::vector<std::int32_t>& blocks,
       std::int64_t count)
      : payload_(elements.size() * sizeof(float) + blocks.size() * sizeof(std::int32_t)) {
    if (!elements.empty())
      std::memcpy(payload_.data(), elements.data(), elements.size() * sizeof(float));
    if (!blocks.empty()) {
      std::memcpy(payload_.data() + elements.size() * sizeof(float), blocks.data(),
                  blocks.size() * sizeof(std::int32_t));
    }
    header_ = {
        .kind = RequestKind::push_dense, .count = count, .payload_bytes = std::ssize(payload_)};
  }

  Request request() const { return {0, 1, header_, payload_}; }
  void cut(std::size_t bytes) { payload_.resize(payload_.size() - bytes); }

 private:
  std::vector<std::byte> payload_;
  RequestHeader header_;
};

/** Blocks of 2, 3 and 1 elements, all zero. */
class DenseRequest : public ::testing::Test {
 protected:
  DenseRequest() : stores_({}, std::make_unique<DenseStore>(blocks(), "")) {}

  std::string refusal(const Push& push) {
    std::string text = text_of<InvalidArgument>([&] { stores_.apply(push.request(), 1.0F); });
    EXPECT_EQ(values(), std::vector<float>(6, 0.0F)) << text;
    return text;
  }
  std::vector<float> values() const {
    const std::span<const float> all = stores_.dense().values();
    return {all.begin(), all.end()};
  }

  Stores stores_;

 private:
  static std::vector<OwnBlock> blocks() {
    std::vector<OwnBlock> blocks;
    for (const std::int64_t count : {2, 3, 1})
      blocks.push_back({.block = {.count = count, .name = "w"}, .rule = Sgd{.lr = 1.0F}});
    return blocks;
  }
};

TEST_F(DenseRequest, BlocksComeInAnyOrder) {
  stores_.apply(Push({-1, -2, -3}, {2, 0}, 3).request(), 2.0F);
  EXPECT_EQ(values(), (std::vector<float>{4, 6, 0, 0, 0, 2}));
  stores_.apply(Push({}, {}, 0).request(), 1.0F);
  stores_.apply(Push({-1, -1, -1}, {1}, 3).request(), 1.0F);
  EXPECT_EQ(values(), (std::vector<float>{4, 6, 1, 1, 1, 2}));
}

TEST_F(DenseRequest, WhatDoesNotFitIsRefusedAndChangesNothing) {
  EXPECT_EQ(refusal({{1, 2, 3}, {2, 3}, 3}), "push_dense: block 3 of 3 is none, or comes twice");
  EXPECT_EQ(refusal({{1, 2, 3}, {2, -1}, 3}), "push_dense: block -1 of 3 is none, or comes twice");
  EXPECT_EQ(refusal({{1, 2}, {2, 2}, 2}), "push_dense: block 2 of 3 is none, or comes twice");
  EXPECT_EQ(refusal({{1, 2}, {2, 0}, 2}), "push_dense: 2 elements are too few for its blocks");
  EXPECT_EQ(refusal({{1, 2, 3, 4}, {2, 0}, 4}),
            "push_dense: 4 elements, of which 1 are no block's");
  EXPECT_EQ(refusal({{1, 2, 3}, {}, 3}), "push_dense: 3 elements, of which 3 are no block's");
  EXPECT_EQ(refusal({{1, 2, 3}, {2, 0}, 6}), "push_dense: 20 bytes for 6 elements and blocks");
  EXPECT_EQ(refusal({{1, 2, 3}, {2, 0}, std::int64_t{1} << 62}),
            "push_dense: 20 bytes for 4611686018427387904 elements and blocks");
  EXPECT_EQ(refusal({{1, 2, 3}, {2, 0}, -1}), "push_dense: 20 bytes for -1 elements and blocks");
  Push cut({1, 2, 3}, {2, 0}, 3);
  cut.cut(1);
  EXPECT_EQ(refusal(cut), "push_dense: 19 bytes for 3 elements and blocks");
}

}  // namespace
}  // namespace tutti::ps
