// When what comes is confirmed: no call that reads a note is to send a packet first.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>

#include "notes_over_tcp.hpp"
#include "streams_fixture.hpp"

namespace tutti::mpi {
namespace {

using test::Bytes;
using test::note_of;

constexpr auto kExchange = Wire::Traffic::collective;
constexpr int kHeader = 8;
constexpr std::int64_t kMuch = Wire::kSpare;

class ConfirmedNotesTest : public test::NotesOverTcp {
 protected:
  void SetUp() override {
    NotesOverTcp::SetUp();
    for (int time = 0; time < 20; ++time) exchange(100);  // a new one confirms each segment
  }
  /** The other end gives first, so it owes what the root gives. */
  void exchange(std::int64_t bytes) {
    Bytes given(static_cast<std::size_t>(bytes));
    Bytes got(given.size());
    const auto here = root_->receive(got.data(), bytes, 1, kExchange);
    const auto there = other_->receive(got.data(), bytes, 0, kExchange);
    ASSERT_TRUE(other_->take_ended(other_->send(given.data(), bytes, 0, kExchange)));
    while (!root_->take_ended(here)) root_->progress();
    ASSERT_TRUE(root_->take_ended(root_->send(given.data(), bytes, 1, kExchange)));
    while (!other_->take_ended(there)) other_->progress();
  }
  bool take() {
    return other_->take(room_.data(), Wire::kShort, Wire::Traffic::note, 0).has_value();
  }
  /** A note, and so many bytes behind it, until both have been taken. */
  void pass(std::size_t bytes) {
    const Bytes data = test::bytes(bytes, 7);
    send(note_of(1));
    const auto posted = root_->send(data.data(), std::ssize(data), 1, Wire::Traffic::noted);
    expect(1);
    Bytes come(bytes);
    const auto there = other_->receive(come.data(), std::ssize(come), 0, Wire::Traffic::noted);
    while (!other_->take_ended(there)) {
      root_->progress();
      other_->progress();
    }
    EXPECT_TRUE(root_->take_ended(posted));
    EXPECT_EQ(come, data);
  }
  /** Of fewer unread bytes poll() does not tell, and the kernel confirms what is more than a
   * segment. */
  int low_water() const {
    int bytes = 0;
    socklen_t length = sizeof bytes;
    EXPECT_EQ(::getsockopt(others_number_, SOL_SOCKET, SO_RCVLOWAT, &bytes, &length), 0);
    return bytes;
  }

  std::array<std::byte, Wire::kShort> room_{};
};

TEST_F(ConfirmedNotesTest, BehindAnExchangeTheyAreLookedAtAlone) {
  int unconfirmed_then = 0;  // where this process gets a core
  for (int time = 0; time < 10; ++time) {
    exchange(100);
    EXPECT_FALSE(take());
    send(note_of(time));
    expect(time);
    EXPECT_EQ(unread(), kHeader + std::ssize(test::Note{}));
    if (unconfirmed() > 0) ++unconfirmed_then;
  }
  EXPECT_GT(unconfirmed_then, 0);
  const test::Note answer{};
  other_->send(answer.data(), std::ssize(answer), 0, kExchange);
  EXPECT_TRUE(soon([&] { return unconfirmed() == 0; }));
  EXPECT_EQ(unread(), 0);
  exchange(100);
  send(note_of(1));
  expect(1);
  EXPECT_GT(unread(), 0);
  EXPECT_FALSE(take());
  EXPECT_EQ(unread(), 0);
}

/** Or its sender would hold back the third. */
TEST_F(ConfirmedNotesTest, WhatAsksToBeConfirmedIsThoughItWasLookedAtAlone) {
  int confirmed = 0;  // where this process gets a core
  for (int time = 0; time < 10; ++time) {
    exchange(100);
    for (int number = 0; number < 2; ++number) send(note_of(number));
    for (int number = 0; number < 2; ++number) expect(number);
    EXPECT_EQ(unread(), 0);
    if (unconfirmed() == 0) ++confirmed;
    send(note_of(2));
    expect(2);
    EXPECT_EQ(unread(), 0);
  }
  EXPECT_GT(confirmed, 0);
}

TEST_F(ConfirmedNotesTest, TheEndOfAConnectionIsSeenBehindWhatWasLookedAtAlone) {
  exchange(100);
  send(note_of(6));
  ASSERT_EQ(::shutdown(number_, SHUT_WR), 0);
  expect(6);
  EXPECT_GT(unread(), 0);
  EXPECT_FALSE(other_->are_in_trouble());
  EXPECT_TRUE(soon([&] { return !take() && other_->are_in_trouble(); }));
}

TEST_F(ConfirmedNotesTest, OnceItHasSentSomethingTheReceiverOwesNothing) {
  exchange(100);
  const test::Note answer{};
  other_->send(answer.data(), std::ssize(answer), 0, Wire::Traffic::note);
  send(note_of(3));
  expect(3);
  EXPECT_EQ(unread(), 0);
}

TEST_F(ConfirmedNotesTest, WhoOwesMuchConfirmsItWhileItWaits) {
  int confirmed = 0;       // where this process gets a core
  int returned_first = 0;  // the calls that read the notes
  for (int time = 0; time < 10; ++time) {
    exchange(kMuch);
    ASSERT_FALSE(take());
    if (unconfirmed() == 0) ++confirmed;
    send(note_of(time));
    expect(time);
    EXPECT_EQ(unread(), 0);
    if (unconfirmed() > 0) ++returned_first;
  }
  EXPECT_GT(confirmed, 0);
  EXPECT_GT(returned_first, 0);
}

/** Be it the note, what came behind it, or all of both. */
TEST_F(ConfirmedNotesTest, WhatWasLookedAtIsTakenOnce) {
  for (const std::size_t bytes :
       std::initializer_list<std::size_t>{0, 1, 4095, 4096, 16'000, 16'780, 16'781, 100'000}) {
    SCOPED_TRACE(bytes);
    exchange(100);
    pass(bytes);
    pass(bytes);
    exchange(100);
    send(note_of(3));
    send(note_of(2));
    expect(3);
    expect(2);
    pass(bytes / 3);
    EXPECT_FALSE(take());
    EXPECT_EQ(unread(), 0);
  }
}

TEST_F(ConfirmedNotesTest, APartOfOneIsLookedAtAndTheRestToo) {
  exchange(100);
  const std::uint64_t header =
      std::uint64_t{300} << 8U | static_cast<std::uint64_t>(Wire::Traffic::note);
  Bytes message(kHeader);
  std::memcpy(message.data(), &header, kHeader);
  const Bytes note = test::bytes(300, 5);
  message.insert(message.end(), note.begin(), note.end());
  for (std::size_t sent = 0; sent < message.size(); sent += 5) {
    EXPECT_FALSE(take());
    const std::size_t part = std::min<std::size_t>(5, message.size() - sent);
    ASSERT_EQ(::send(number_, message.data() + sent, part, 0), static_cast<ssize_t>(part));
  }
  ASSERT_TRUE(soon([&] { return take(); }));
  EXPECT_TRUE(std::equal(note.begin(), note.end(), room_.begin()));
  pass(10);
}

TEST_F(ConfirmedNotesTest, NapsDoNotEndByWhatWasLookedAt) {
  exchange(100);
  send(note_of(4));
  expect(4);
  Bytes come(10);
  const auto posted = other_->receive(come.data(), std::ssize(come), 0, kExchange);
  constexpr std::chrono::milliseconds kNap{2};
  const auto start = std::chrono::steady_clock::now();
  other_->nap(kNap);
  EXPECT_GE(std::chrono::steady_clock::now() - start, kNap);
  EXPECT_EQ(unread(), 0);
  other_->withdraw(posted);
}

TEST_F(ConfirmedNotesTest, LongOnesAreConfirmedAsTheyComeUntilLongMessagesGoToAndFro) {
  constexpr std::size_t kLong = 70'000;  // more than a segment here
  EXPECT_FALSE(take());
  EXPECT_EQ(low_water(), 1);
  pass(kLong);
  EXPECT_EQ(low_water(), 1);
  EXPECT_FALSE(take());
  EXPECT_EQ(low_water(), 64 << 10);
  pass(kLong);
  exchange(100);
  EXPECT_EQ(low_water(), 64 << 10);
  exchange(kLong);
  EXPECT_EQ(low_water(), 1);
  EXPECT_FALSE(take());
  EXPECT_EQ(low_water(), 64 << 10);
  pass(100);
  Bytes come(kLong);  // of which only the header tells
  const Bytes given(kLong);
  const auto posted = root_->send(given.data(), std::ssize(given), 1, kExchange);
  const auto there = other_->receive(come.data(), std::ssize(come), 0, kExchange);
  while (!other_->take_ended(there)) {
    root_->progress();
    other_->progress();
  }
  EXPECT_TRUE(root_->take_ended(posted));
  EXPECT_EQ(low_water(), 1);
  EXPECT_FALSE(take());  // the last note was short
  EXPECT_EQ(low_water(), 1);
  pass(kLong);
  EXPECT_FALSE(take());
  EXPECT_EQ(low_water(), 64 << 10);
  exchange(100);
  send(note_of(8));  // who confirms as it comes need not look at it alone
  expect(8);
  EXPECT_EQ(unread(), 0);
  pass(kLong);
  EXPECT_FALSE(take());
  EXPECT_EQ(low_water(), 64 << 10);
  other_->send(given.data(), std::ssize(given), 0, kExchange);
  EXPECT_EQ(low_water(), 1);
}

TEST_F(ConfirmedNotesTest, AShortOneEndsANapThoughTheLastWasLong) {
  pass(70'000);
  EXPECT_FALSE(take());
  send(note_of(9));
  other_->nap(std::chrono::hours(24));
  EXPECT_EQ(low_water(), 1);
  EXPECT_TRUE(take());
  EXPECT_EQ(room_[0], std::byte{9});
}

}  // namespace
}  // namespace tutti::mpi
