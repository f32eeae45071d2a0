// A host that passes notes on passes those on along that have come together.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/notes.hpp"
#include "comm/hosts/group/one_way.hpp"
#include "unit/scripted_wire.hpp"

namespace tutti {
namespace {

using test::ScriptedWire;

using Bytes = std::vector<std::byte>;

constexpr int kFirstHost = 0;
constexpr int kSecond = 1;
constexpr int kThird = 2;
constexpr std::int64_t kBytes = 4;

Signature broadcast_of(std::uint64_t sequence, int root = kFirstHost, std::int64_t bytes = kBytes) {
  Signature signature;
  signature.sequence = sequence;
  signature.operation = Operation::broadcast;
  signature.root = root;
  signature.count = bytes;
  return signature;
}

/** The second of three hosts, in a row of broadcasts. */
class PassedNotesTest : public ::testing::Test {
 protected:
  /** A note of the root is there, which carries `bytes` times its call's number. */
  void comes(const Signature& signature, std::size_t bytes = kBytes) {
    ScriptedWire theirs(kFirstHost);
    Notes notes(theirs);
    notes.begin(signature, {}, {});
    Bytes room(Wire::kShort);
    const Bytes data(bytes, static_cast<std::byte>(signature.sequence));
    room.resize(static_cast<std::size_t>(notes.write(room.data(), data, {})));
    wire_.come.push_back({kFirstHost, Wire::Traffic::note, room});
  }
  /** The host's own call: takes the root's note. */
  void call(std::uint64_t sequence, std::int64_t in_a_row = 10) {
    notes_.begin(broadcast_of(sequence), {}, std::array{kFirstHost});
    Bytes data(kBytes);
    OneWayCall(group_, {kFirstHost, kBytes, in_a_row}).take(notes_, data);
    EXPECT_EQ(data, Bytes(kBytes, static_cast<std::byte>(sequence)));
  }
  /** Of which calls the third host has notes. */
  std::vector<int> passed() const {
    std::vector<int> calls;
    for (const ScriptedWire::Message& one : wire_.sent) {
      EXPECT_EQ(one.source, kThird);
      calls.push_back(static_cast<int>(*Notes::carried_by(one.bytes.data())));
    }
    return calls;
  }

  ScriptedWire wire_{kSecond};
  HostGroup group_{wire_, {kFirstHost, kSecond, kThird}};
  Notes notes_{wire_};
};

TEST_F(PassedNotesTest, ThoseThatHaveComeTogetherGoTogetherAndOnce) {
  for (const std::uint64_t sequence : {1U, 2U, 3U}) comes(broadcast_of(sequence));
  call(1);
  EXPECT_EQ(passed(), (std::vector<int>{1, 2, 3}));
  EXPECT_FALSE(wire_.holds);
  comes(broadcast_of(4));
  call(2);
  call(3);
  EXPECT_EQ(passed(), (std::vector<int>{1, 2, 3}));
  call(4);
  EXPECT_EQ(passed(), (std::vector<int>{1, 2, 3, 4}));
}

TEST_F(PassedNotesTest, WhatWasFoundEarlyGoesAlongInItsOrder) {
  for (const std::uint64_t sequence : {1U, 2U}) comes(broadcast_of(sequence));
  notes_.begin({}, {}, {});
  notes_.look();  // of another wait
  comes(broadcast_of(3));
  for (const std::uint64_t sequence : {1U, 2U, 3U}) call(sequence);
  EXPECT_EQ(passed(), (std::vector<int>{1, 2, 3}));
}

TEST_F(PassedNotesTest, WhatComesOfAnotherRootWaitsForItsCall) {
  comes(broadcast_of(1));
  comes(broadcast_of(2, kThird));
  call(1);
  EXPECT_EQ(passed(), std::vector<int>{1});
}

TEST_F(PassedNotesTest, WhatIsFollowedByDataWaitsForItsCall) {
  comes(broadcast_of(1));
  comes(broadcast_of(2, kFirstHost, 100'000), 0);
  comes(broadcast_of(3));
  call(1);
  EXPECT_EQ(passed(), std::vector<int>{1});
}

TEST_F(PassedNotesTest, TheFirstInARowComeFromTheRootItself) {
  for (const std::uint64_t sequence : {1U, 2U, 3U}) comes(broadcast_of(sequence));
  call(1, 0);
  EXPECT_EQ(passed(), std::vector<int>{});
}

TEST_F(PassedNotesTest, NoMoreThanSomeAreKept) {
  std::vector<int> all(1000);
  std::iota(all.begin(), all.end(), 1);
  for (const int number : all) comes(broadcast_of(static_cast<std::uint64_t>(number)));
  call(1);
  EXPECT_LT(wire_.sent.size(), all.size() / 2);
  for (std::uint64_t sequence = 2; sequence <= all.size(); ++sequence) {
    notes_.begin(broadcast_of(sequence), {}, std::array{kFirstHost});
    Bytes data(kBytes);
    OneWayCall(group_, {kFirstHost, kBytes, 10}).take(notes_, data);
  }
  EXPECT_EQ(wire_.sent.size(), all.size());
}

/** Who takes one may be busy with something else until that call, for which it needs this host. */
TEST_F(PassedNotesTest, NobodyWaitsForOneBeforeItsCall) {
  for (const std::uint64_t sequence : {1U, 2U, 3U}) comes(broadcast_of(sequence));
  wire_.most_delivered = 1;
  call(1);
  EXPECT_EQ(passed(), (std::vector<int>{1, 2, 3}));
  wire_.at_pause = [this] { wire_.most_delivered = 2; };
  call(2);
  EXPECT_EQ(wire_.most_delivered, 2);  // it has waited for that one
  wire_.at_pause = [this] { wire_.most_delivered = 3; };
  call(3);
  EXPECT_EQ(wire_.most_delivered, 3);
  EXPECT_EQ(wire_.abandoned, 0);
}

TEST_F(PassedNotesTest, WhatHasLeftByTheEndIsNotAbandoned) {
  for (const std::uint64_t sequence : {1U, 2U, 3U}) comes(broadcast_of(sequence));
  wire_.most_delivered = 1;
  call(1);
  wire_.most_delivered = 2;
  notes_.end();
  EXPECT_EQ(wire_.abandoned, 1);
  EXPECT_EQ(wire_.kept.size(), 1);
}

/** MPI may read them until it is finalised. */
TEST_F(PassedNotesTest, ThoseUnderWayOutliveABatchThatIsAbandoned) {
  for (const std::uint64_t sequence : {1U, 2U, 3U}) comes(broadcast_of(sequence));
  wire_.delivers = false;
  {
    Notes notes(wire_);
    notes.begin(broadcast_of(1), {}, std::array{kFirstHost});
    Bytes data(kBytes);
    EXPECT_THROW(OneWayCall(group_, {kFirstHost, kBytes, 10}).take(notes, data), test::TooLate);
  }
  EXPECT_EQ(wire_.abandoned, 3);
  EXPECT_EQ(passed(), (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(wire_.kept.size(), 2);
  for (const ScriptedWire::Message& one : std::span(wire_.sent).subspan(1)) {  // not of the wire
    EXPECT_TRUE(std::equal(one.bytes.begin(), one.bytes.end(), one.memory));
  }
}

}  // namespace
}  // namespace tutti
