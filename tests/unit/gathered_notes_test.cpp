// Notes to one rank, many in a row: they go together, and none waits for a call to come.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <vector>

#include "notes_over_tcp.hpp"

namespace tutti::mpi {
namespace {

using test::Note;
using test::note_of;

class GatheredNotesTest : public test::NotesOverTcp {};

TEST_F(GatheredNotesTest, ThoseInARowGoTogether) {
  // A new connection confirms each segment at once.
  for (int number = 0; number < 60; ++number) {
    send(note_of(number));
    expect(number);
  }
  constexpr int kNotes = 9;
  const unsigned before = segments_sent();
  for (int number = 0; number < kNotes; ++number) send(note_of(number));
  for (int number = 0; number < kNotes; ++number) expect(number);
  // The kernel that has them unread confirms them each 40 ms.
  EXPECT_LE(segments_sent() - before, 5);
}

/** Of what has come one look takes all that fits, and whoever passes it on need not ask for it
 * again. */
TEST_F(GatheredNotesTest, ThoseInARowAreReadTogether) {
  EXPECT_FALSE(other_->has_read(0, Wire::Traffic::note));
  constexpr int kNotes = 150;  // nearly as many as one read brings
  for (int number = 0; number < kNotes; ++number) send(note_of(number));
  constexpr int kHeader = 8;
  ASSERT_TRUE(soon([&] { return unread() == kNotes * (kHeader + int{sizeof(Note)}); }));
  expect(0);
  EXPECT_EQ(unread(), 0);
  for (int number = 1; number < kNotes; ++number) {
    EXPECT_TRUE(other_->has_read(0, Wire::Traffic::note));
    expect(number);
  }
  EXPECT_FALSE(other_->has_read(0, Wire::Traffic::note));
  send(note_of(1), Wire::Traffic::noted);
  send(note_of(2));
  EXPECT_FALSE(other_->has_read(0, Wire::Traffic::note));
}

TEST_F(GatheredNotesTest, SixteenKilobytesComeAlongWithTheirNote) {
  const std::vector<std::byte> data(16 << 10, std::byte{1});
  const std::array<std::byte, 200> note{};
  root_->send(note.data(), std::ssize(note), 1, Wire::Traffic::note);
  root_->send(data.data(), std::ssize(data), 1, Wire::Traffic::noted);
  ASSERT_TRUE(soon([&] { return unread() == 8 + 200 + 8 + std::ssize(data); }));
  std::array<std::byte, Wire::kShort> room{};
  ASSERT_TRUE(other_->take(room.data(), Wire::kShort, Wire::Traffic::note, 0));
  EXPECT_EQ(unread(), 0);
  std::vector<std::byte> come(data.size());
  const auto posted = other_->receive(come.data(), std::ssize(come), 0, Wire::Traffic::noted);
  other_->progress();
  EXPECT_TRUE(other_->take_ended(posted));
  EXPECT_EQ(come, data);
}

/** After messages to and fro the kernel confirms along with the next one, and waits for that. */
TEST_F(GatheredNotesTest, AreConfirmedAsTheyAreRead) {
  answer_each(20);  // a new connection confirms each segment at once
  for (int time = 0; time < 10; ++time) {
    SCOPED_TRACE(time);
    answer_each(10);
    for (int number = 0; number < 2; ++number) send(note_of(number));
    for (int number = 0; number < 2; ++number) expect(number);
    for (int number = 2; number < 5; ++number) send(note_of(number));
    expect(2);
    EXPECT_EQ(unsent(), 0);  // as those before are confirmed
    for (int number = 3; number < 5; ++number) expect(number);
  }
}

TEST_F(GatheredNotesTest, NoneIsHeldBackBehindOneThatHasNotLeft) {
  answer_each(20);  // the kernel paces no fewer than ten segments
  const unsigned bytes_each_second = 1000;
  ASSERT_EQ(::setsockopt(number_, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_each_second,
                         sizeof bytes_each_second),
            0);
  for (int number = 0; number < 5; ++number) send(note_of(number));
  ASSERT_GT(unsent(), 0);
  EXPECT_TRUE(sends_at_once());
}

TEST_F(GatheredNotesTest, AllOfManyArrive) {
  constexpr int kNotes = 2000;
  std::vector<Wire::Posted> sends;
  const Note note{};
  for (int number = 0; number < kNotes; ++number) {
    sends.push_back(root_->send(note.data(), std::ssize(note), 1, Wire::Traffic::note));
  }
  for (int number = 0; number < kNotes; ++number) {
    root_->progress();
    expect(0);
  }
  for (const auto posted : sends) EXPECT_TRUE(root_->take_ended(posted));
}

/** What was held is no more at once than what was not. */
TEST_F(GatheredNotesTest, OfManyThatWereHeldMostWaitForTheOtherKernel) {
  constexpr int kNotes = 1000;
  const std::vector<std::byte> note(Wire::kShort);
  std::vector<Wire::Posted> sends;
  root_->hold(true);
  for (int number = 0; number < kNotes; ++number) {
    sends.push_back(root_->send(note.data(), std::ssize(note), 1, Wire::Traffic::note));
  }
  root_->hold(false);
  int left = 0;
  ASSERT_EQ(::ioctl(number_, SIOCOUTQ, &left), 0);
  EXPECT_LE(left, 2 * Streams::kMostUnconfirmed);
  for (int number = 0; number < kNotes; ++number) {
    root_->progress();
    expect(0);
  }
  for (const auto posted : sends) EXPECT_TRUE(root_->take_ended(posted));
}

TEST_F(GatheredNotesTest, TheFirstAndWhatIsNoNoteGoAtOnce) {
  Note room{};
  for (int time = 0; time < 3; ++time) {
    send(note_of(0));
    EXPECT_TRUE(sends_at_once());
    send(note_of(1));
    EXPECT_TRUE(sends_at_once());
    send(note_of(2));
    EXPECT_FALSE(sends_at_once());
    send(note_of(3), Wire::Traffic::collective);
    EXPECT_TRUE(sends_at_once());
    for (int number = 0; number < 3; ++number) expect(number);
    const auto posted =
        other_->receive(room.data(), std::ssize(room), 0, Wire::Traffic::collective);
    while (!other_->take_ended(posted)) other_->progress();
  }
}

TEST_F(GatheredNotesTest, WhoHearsBetweenThemSendsAtOnce) {
  for (int time = 0; time < 10; ++time) {
    answer_each(1);
    EXPECT_TRUE(sends_at_once());
  }
}

TEST_F(GatheredNotesTest, TheLastOfARootThatLeavesArrive) {
  const Note question{};  // is never read
  other_->send(question.data(), std::ssize(question), 0, Wire::Traffic::question);
  for (int number = 0; number < 50; ++number) send(note_of(number));
  root_.reset();
  for (int number = 0; number < 50; ++number) expect(number);
}

}  // namespace
}  // namespace tutti::mpi
