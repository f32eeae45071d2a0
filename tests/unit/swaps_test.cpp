// From which memory leaves what two hosts swap, and when it may be written to.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/group.hpp"
#include "unit/scripted_wire.hpp"

namespace tutti::swaps_test {
namespace {

using test::ScriptedWire;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kNote = GroupAgreement::kHeaderBytes;

/** The first of two hosts, which brings more than one message has over MPI. */
class SwapsTest : public ::testing::Test {
 protected:
  SwapsTest() {
    for (std::size_t i = 0; i < data_.size(); ++i) data_[i] = static_cast<std::byte>(i % 251);
  }
  void connect() {
    wire_.passes = true;
    wire_.most = Wire::kWholePiece;
  }
  /** In place. */
  bool swap(const HostGroup::Merge& merge) {
    return agreement_->agree(1, {data_, std::ssize(data_)}, data_, merge);
  }
  void expect_a_failure() {
    wire_.at_progress = [] { throw test::TooLate(); };
    EXPECT_THROW(swap([](auto) { ADD_FAILURE() << "nothing has come"; }), test::TooLate);
    EXPECT_EQ(wire_.abandoned, 1);
    ASSERT_EQ(wire_.sent.size(), 2U);
    EXPECT_TRUE(wire_.sent[0].held && wire_.sent[1].held);
    EXPECT_FALSE(wire_.holds);
  }

  ScriptedWire wire_{0};
  HostGroup group_{wire_, {0, 1}};
  std::unique_ptr<GroupAgreement> agreement_ = std::make_unique<GroupAgreement>(group_);
  Bytes data_ = Bytes(100'000);
};

TEST_F(SwapsTest, LeaveOverAConnectionFromWhereTheyAre) {
  connect();
  ASSERT_NO_FATAL_FAILURE(expect_a_failure());
  EXPECT_EQ(wire_.sent[0].bytes.size(), kNote);
  EXPECT_EQ(wire_.sent[1].bytes, data_);
  EXPECT_EQ(wire_.sent[1].memory, data_.data());
}

TEST_F(SwapsTest, LeaveOverMpiFromMemoryThatIsKeptAfterAFailure) {
  ASSERT_NO_FATAL_FAILURE(expect_a_failure());
  Bytes both(wire_.sent[0].bytes.begin() + kNote, wire_.sent[0].bytes.end());
  EXPECT_EQ(both.size(), Wire::kPiece - kNote);
  both.insert(both.end(), wire_.sent[1].bytes.begin(), wire_.sent[1].bytes.end());
  EXPECT_EQ(both, data_);
  // Whose call it was, and the agreement, are gone when MPI reads it.
  ASSERT_EQ(wire_.kept.size(), 1U);
  agreement_.reset();
  std::fill(data_.begin(), data_.end(), std::byte{255});
  EXPECT_EQ(wire_.kept.front().use_count(), 1);
  for (const ScriptedWire::Message& one : wire_.sent) {
    EXPECT_GE(one.memory, wire_.kept.front().get());
    EXPECT_TRUE(std::equal(one.bytes.begin(), one.bytes.end(), one.memory));
  }
}

TEST_F(SwapsTest, AreNotMergedInPlaceBeforeTheyHaveLeft) {
  connect();
  bool is_merged = false;
  wire_.at_progress = [&] {  // the other's note, which is as this one's; what follows it comes, too
    std::copy(wire_.sent[0].bytes.begin(), wire_.sent[0].bytes.end(), wire_.wanted[0]);
  };
  wire_.most_delivered = 1;  // the note leaves
  wire_.at_pause = [&] {
    EXPECT_EQ(wire_.wanted.size(), 2U);
    EXPECT_FALSE(is_merged);
    if (wire_.stills.size() == 3) wire_.most_delivered = 2;
  };
  EXPECT_TRUE(swap([&](auto) { is_merged = true; }));
  EXPECT_EQ(wire_.stills.size(), 3U);
  EXPECT_TRUE(is_merged);
}

}  // namespace
}  // namespace tutti::swaps_test
