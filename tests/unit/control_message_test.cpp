// Control messages arrive as they were sent, and are no longer than what they say.
#include "comm/failures/control_message.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace tutti {
namespace {

template <class Message>
Message passed(const Message& message) {
  const auto arrived = unpacked(packed(message));
  EXPECT_TRUE(arrived && std::holds_alternative<Message>(*arrived));
  return std::get<Message>(*arrived);
}

TEST(ControlMessage, IsAsLongAsWhatItSays) {
  EXPECT_EQ(packed(Departure{}).size(), 1 + sizeof(Departure));
  EXPECT_LE(packed(Enquiry{}).size(), 2U);
  FailureReport report{};
  report.set_lost(std::array{3}, "has ended");
  EXPECT_LT(packed(report).size(), 64U);
  EXPECT_LT(packed(Answer{}).size(), 64U);
}

TEST(ControlMessage, ArrivesAsItWasSent) {
  EXPECT_EQ(passed(Question{7, -8}).overdue, -8);
  EXPECT_EQ(passed(Departure{{1, 2, 3}}).sent, (MessageCounts::Sent{1, 2, 3}));
  EXPECT_EQ(passed(Headcount{4, 5}), (Headcount{4, 5}));
  passed(Enquiry{});
  Answer answer;
  answer.awaited_count = Answer::kMost;
  answer.entries.back() = 9;
  answer.idle_later = 10;
  EXPECT_EQ(passed(answer).entries, answer.entries);
  EXPECT_EQ(passed(answer).idle_later, 10);
  FailureReport report{};
  std::vector<int> lost(FailureReport::kMostRanks, 5);
  report.set_lost(lost, std::string(FailureReport::kMostText, 'x'), Ended::yes);
  const FailureReport arrived = passed(report);
  EXPECT_EQ(arrived.ended, Ended::yes);
  EXPECT_EQ(arrived.text_value(), report.text_value());
  EXPECT_TRUE(std::ranges::equal(arrived.rank_list(), lost));
}

TEST(ControlMessage, WhatIsNoneIsNotTakenForOne) {
  EXPECT_FALSE(unpacked({}));
  RecycledVector<std::byte> bytes = packed(Headcount{4, 5});
  bytes.push_back({});
  EXPECT_FALSE(unpacked(bytes));
  bytes.resize(5);
  EXPECT_FALSE(unpacked(bytes));
  bytes = packed(Answer{});
  bytes[5] = std::byte{1};  // an entry that is not there
  EXPECT_FALSE(unpacked(bytes));
  bytes[8] = std::byte{0x7F};  // very many of them
  EXPECT_FALSE(unpacked(bytes));
  bytes[0] = std::byte{99};
  EXPECT_FALSE(unpacked(bytes));
}

}  // namespace
}  // namespace tutti
