// Notes: taken from whom they are awaited, kept if they are early, refused if they are of another
// call.
#include "comm/hosts/group/notes.hpp"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tutti/error.hpp"
#include "unit/scripted_wire.hpp"

namespace tutti {
namespace {

using test::ScriptedWire;
using test::TooLate;

using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

constexpr int kOwn = 2;    // the rank whose notes are looked at
constexpr int kRoot = 0;   // whom it waits for
constexpr int kOther = 1;  // somebody else

Signature broadcast(std::uint64_t sequence, int root = kRoot, std::int64_t count = 4) {
  Signature signature;
  signature.sequence = sequence;
  signature.operation = Operation::broadcast;
  signature.root = root;
  signature.count = count;
  return signature;
}

Bytes bytes_of_text(const std::string& text) {
  Bytes bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.data(), text.data(), text.size());
  return bytes;
}

class NotesTest : public ::testing::Test {
 protected:
  /** A note of `author` on `signature` is there, which carries `text`. */
  void comes(int source, const Signature& signature, const std::string& text = "",
             std::chrono::microseconds away = {}) {
    ScriptedWire theirs(source);
    Notes notes(theirs);
    notes.begin(signature, {}, {});
    Bytes room(Wire::kShort);
    room.resize(static_cast<std::size_t>(notes.write(room.data(), bytes_of_text(text), away)));
    wire_.come.push_back({source, Wire::Traffic::note, room});
  }
  /** Waits for the root's note of `signature`: what it carries. */
  std::string wait_for(const Signature& signature) {
    notes_.begin(signature, {}, std::array{kRoot});
    Bytes room(Wire::kShort);
    const std::int64_t bytes = notes_.wait(room.data()).bytes;
    away_ = Notes::away_in(room.data());
    const auto* const begin = reinterpret_cast<const char*>(Notes::carried_by(room.data()));
    const auto* const end = reinterpret_cast<const char*>(room.data()) + bytes;
    return {begin, end};
  }
  std::string refusal_in(const std::function<void()>& action) {
    try {
      action();
    } catch (const OneSidedMismatch& error) {
      return error.what();
    }
    return "";
  }

  ScriptedWire wire_{kOwn};
  Notes notes_{wire_};
  std::chrono::microseconds away_{};
};

TEST_F(NotesTest, ANoteBringsItsDataAndHowLongItsAuthorWasAway) {
  comes(kRoot, broadcast(1), "data", 250us);
  EXPECT_EQ(wait_for(broadcast(1)), "data");
  EXPECT_EQ(away_, 250us);
  comes(kRoot, broadcast(2), "", std::chrono::hours(10));
  EXPECT_EQ(wait_for(broadcast(2)), "");
  EXPECT_GT(away_, std::chrono::hours(1));  // as much as a note can say
}

TEST_F(NotesTest, NotesOfARootThatRunsAheadAreTakenInTheirOrder) {
  for (std::uint64_t call = 1; call <= 3; ++call) {
    comes(kRoot, broadcast(call), std::to_string(call));
  }
  for (std::uint64_t call = 1; call <= 3; ++call) {
    EXPECT_EQ(wait_for(broadcast(call)), std::to_string(call));
  }
}

TEST_F(NotesTest, WhatIsEarlyWaitsForItsCall) {
  comes(kOther, broadcast(2, kOther), "of the other");
  comes(kRoot, broadcast(3), "third");
  notes_.begin(broadcast(1, kOwn), {}, {});
  notes_.look();
  EXPECT_TRUE(wire_.come.empty());
  notes_.begin(broadcast(2, kOther), {}, std::array{kOther});
  Bytes room(Wire::kShort);
  notes_.wait(room.data());
  EXPECT_EQ(std::memcmp(Notes::carried_by(room.data()), "of the other", 12), 0);
  EXPECT_EQ(wait_for(broadcast(3)), "third");
}

TEST_F(NotesTest, WhoRunsFarAheadIsLeftToTheWire) {
  constexpr std::uint64_t kMany = 1000;
  for (std::uint64_t call = 2; call <= kMany; ++call) {
    comes(kRoot, broadcast(call), std::to_string(call));
  }
  notes_.begin(broadcast(1, kOwn), {}, {});
  for (int look = 0; look < 20; ++look) notes_.look();
  EXPECT_GE(wire_.come.size(), kMany / 2);
  for (std::uint64_t call = 2; call <= kMany; ++call) {
    EXPECT_EQ(wait_for(broadcast(call)), std::to_string(call));
  }
}

TEST_F(NotesTest, WhoRunsFarAheadHidesNobodysNotes) {
  for (std::uint64_t call = 2; call <= 1000; ++call) comes(kRoot, broadcast(call));
  notes_.begin(broadcast(1, kOwn), {}, {});
  notes_.look();
  comes(kOther, broadcast(1, kOther));
  EXPECT_NE(refusal_in([&] { notes_.look(); }), "");
}

TEST_F(NotesTest, AnotherCallOfTheRootIsRefused) {
  comes(kRoot, broadcast(1, kRoot, 5));
  const std::string text = refusal_in([&] { wait_for(broadcast(1)); });
  EXPECT_NE(text.find("rank 0: broadcast(u8, count 5, root 0)"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 2: broadcast(u8, count 4, root 0)"), std::string::npos) << text;
}

TEST_F(NotesTest, ANoteOfWhoIsNotAwaitedIsRefusedInAWaitThatLasts) {
  comes(kOther, broadcast(1, kOther));
  EXPECT_NE(refusal_in([&] { wait_for(broadcast(1)); }), "");
}

TEST_F(NotesTest, ANoteOfACallThatIsOverIsRefusedByWhoLooks) {
  notes_.begin(broadcast(2, kOwn), broadcast(1, kOwn), {});
  notes_.look();
  comes(kRoot, broadcast(1));
  const std::string text = refusal_in([&] { notes_.look(); });
  EXPECT_NE(text.find("root 2)"), std::string::npos) << text;
  EXPECT_EQ(text.find("number"), std::string::npos) << text;  // both are the first
}

TEST_F(NotesTest, WhoWaitsLongAsksAndWhoMakesAnotherCallFindsOut) {
  wire_.at_pause = [this] {
    if (!wire_.sent.empty()) comes(kRoot, broadcast(1), "late");
  };
  EXPECT_EQ(wait_for(broadcast(1)), "late");
  ASSERT_EQ(wire_.sent.size(), 1U);
  EXPECT_EQ(wire_.sent[0].source, kRoot);
  EXPECT_EQ(wire_.sent[0].traffic, Wire::Traffic::question);

  ScriptedWire theirs(kRoot);
  theirs.come.push_back({kOwn, Wire::Traffic::question, wire_.sent[0].bytes});
  Notes root(theirs);
  root.begin(broadcast(1), {}, {});
  root.look();  // in the same call: the note is on its way
  theirs.come.push_back({kOwn, Wire::Traffic::question, wire_.sent[0].bytes});
  root.begin(broadcast(1, kRoot, 9), {}, {});
  EXPECT_NE(refusal_in([&] { root.look(); }), "");
}

TEST_F(NotesTest, AQuestionThatLeavesAfterTheNoteHasComeIsNotAbandoned) {
  wire_.delivers = false;
  wire_.at_pause = [this] {
    if (!wire_.sent.empty()) comes(kRoot, broadcast(1));
  };
  wait_for(broadcast(1));
  ASSERT_EQ(wire_.sent.size(), 1U);
  wire_.delivers = true;
  notes_.end();
  EXPECT_EQ(wire_.abandoned, 0);
}

TEST_F(NotesTest, AQuestionThatHasLeftSinceMakesRoomForTheNext) {
  wire_.delivers = false;
  wire_.at_pause = [this] {
    if (wire_.sent.size() == 1) comes(kRoot, broadcast(1));
  };
  wait_for(broadcast(1));
  wire_.delivers = true;
  wire_.at_pause = [this] {
    if (wire_.sent.size() == 2) comes(kRoot, broadcast(2));
  };
  wait_for(broadcast(2));
  EXPECT_EQ(wire_.sent.size(), 2U);
}

TEST_F(NotesTest, AQuestionThatHasNotLeftHoldsUpNoOther) {
  wire_.delivers = false;
  for (std::uint64_t call = 1; call <= 3; ++call) {
    wire_.at_pause = [this, call] {
      if (wire_.sent.size() == call) comes(kRoot, broadcast(call));
    };
    wait_for(broadcast(call));
  }
  EXPECT_EQ(wire_.sent.size(), 3U);
  notes_.end();
  EXPECT_EQ(wire_.abandoned, 1);  // with all of them
}

/** A wire that finds a message failed has all that came looked at, notes among it. */
TEST_F(NotesTest, AQuestionMayTurnOutToHaveFailed) {
  wire_.delivers = false;
  wire_.at_pause = [this] {
    if (!wire_.sent.empty()) comes(kRoot, broadcast(1));
  };
  wait_for(broadcast(1));
  wire_.at_pause = {};
  const auto asks_again = wire_.now() + 31ms;
  wire_.at_progress = [&] {
    if (wire_.now() < asks_again) return;
    notes_.look();
    throw PeerLost({kRoot}, "its process has ended");
  };
  EXPECT_THROW(wait_for(broadcast(2)), PeerLost);
  notes_.end();
  EXPECT_EQ(wire_.abandoned, 1);
}

TEST_F(NotesTest, OfSeveralWhoAreAwaitedEachIsTakenAsItComes) {
  const std::array<int, 2> both{kRoot, kOther};
  notes_.begin(broadcast(1), {}, both);
  comes(kOther, broadcast(1), "of the other");
  comes(kOther, broadcast(2), "of the next call");
  notes_.look();
  Bytes room(Wire::kShort);
  EXPECT_EQ(notes_.wait(room.data()).source, kOther);
  EXPECT_EQ(std::memcmp(Notes::carried_by(room.data()), "of the other", 12), 0);
  wire_.at_pause = [this] {
    if (!wire_.sent.empty()) comes(kRoot, broadcast(1), "asked for");
  };
  EXPECT_EQ(notes_.wait(room.data()).source, kRoot);
  ASSERT_EQ(wire_.sent.size(), 1U);  // only of who is still awaited
  EXPECT_EQ(wire_.sent[0].source, kRoot);
}

TEST_F(NotesTest, AllWhoAreAwaitedAreAsked) {
  const std::array<int, 2> both{kRoot, kOther};
  notes_.begin(broadcast(1), {}, both);
  wire_.at_pause = [this] {
    if (!wire_.sent.empty()) comes(kRoot, broadcast(1));
  };
  Bytes room(Wire::kShort);
  notes_.wait(room.data());
  ASSERT_EQ(wire_.sent.size(), 2U);
  EXPECT_EQ(wire_.sent[0].source, kRoot);
  EXPECT_EQ(wire_.sent[1].source, kOther);
}

/** For the kernel of who gets them, which takes two segments of one length for the longest. */
TEST_F(NotesTest, BeforeDataNoneIsAsLongAsTheOneBeforeAndSomeAreMuchLonger) {
  Bytes room(Wire::kShort);
  const std::int64_t carries = notes_.write(room.data(), bytes_of_text("four"), {}) - 4;
  std::int64_t before = 0;
  std::int64_t first = 0;
  int longer = 0;
  for (int i = 0; i < 64; ++i) {
    const std::int64_t bytes = notes_.write(room.data(), {}, {});
    EXPECT_NE(bytes, before);
    EXPECT_GE(bytes, carries);
    longer += bytes >= carries + Wire::kSpare ? 1 : 0;
    if (before == 0) first = bytes;
    before = bytes;
  }
  EXPECT_EQ(longer, 4);
  EXPECT_GE(first, carries + Wire::kSpare);
  EXPECT_EQ(notes_.write(room.data(), bytes_of_text("four"), {}), carries + 4);
}

/** Notes of one rank come in their order: it has sent none of this call. */
TEST_F(NotesTest, ALaterNoteOfWhoIsAwaitedShowsThatItHasMadeAnotherCall) {
  ScriptedWire theirs(kRoot);
  Notes notes(theirs);
  notes.begin(broadcast(2, kOwn), broadcast(1, kOther), {});
  Bytes note(Wire::kShort);
  note.resize(static_cast<std::size_t>(notes.write(note.data(), {}, {})));
  wire_.come.push_back({kRoot, Wire::Traffic::note, note});
  const std::string text = refusal_in([&] { wait_for(broadcast(1)); });
  EXPECT_NE(text.find("rank 0: broadcast(u8, count 4, root 1)"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 2: broadcast(u8, count 4, root 0)"), std::string::npos) << text;
}

TEST_F(NotesTest, WhoHasGoneOnFromAnotherCallFindsItOutWhenItIsAsked) {
  wire_.at_pause = [this] {
    if (!wire_.sent.empty()) comes(kRoot, broadcast(1));
  };
  wait_for(broadcast(1));
  ScriptedWire theirs(kRoot);
  const auto is_asked = [&] {
    theirs.come.push_back({kOwn, Wire::Traffic::question, wire_.sent[0].bytes});
  };
  Notes root(theirs);
  is_asked();
  root.begin(broadcast(2), broadcast(1), {});
  root.look();  // the note is on its way
  is_asked();
  root.begin(broadcast(2), broadcast(1, kOther), {});
  const std::string text = refusal_in([&] { root.look(); });
  EXPECT_NE(text.find("rank 0: broadcast(u8, count 4, root 1)"), std::string::npos) << text;
}

TEST_F(NotesTest, AWaitForANoteThatDoesNotComeIsNotForEver) {
  EXPECT_THROW(wait_for(broadcast(1)), TooLate);  // of this wire: others have a deadline
}

}  // namespace
}  // namespace tutti
