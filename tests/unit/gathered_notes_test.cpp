// Notes to one rank, many in a row: they go together, and none waits for a call to come.
#include <gtest/gtest.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "comm/mpi/sockets/streams.hpp"
#include "tcp_pair.hpp"

namespace tutti::mpi {
namespace {

using Note = std::array<std::byte, 100>;

Note note_of(int number) {
  Note note{};
  note[0] = static_cast<std::byte>(number);
  return note;
}

class GatheredNotesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto ends = tcp_pair();
    for (const Socket& end : ends) ASSERT_TRUE(send_at_once(end));
    number_ = ends[0].get();
    others_number_ = ends[1].get();
    root_ = with(1, std::move(ends[0]));
    other_ = with(0, std::move(ends[1]));
  }
  static std::unique_ptr<Streams> with(int rank, Socket socket) {
    std::vector<Streams::Connection> connections;
    connections.push_back({rank, Wire::Traffic::collective, std::move(socket)});
    return std::make_unique<Streams>(std::move(connections));
  }
  void send(const Note& note, Wire::Traffic traffic = Wire::Traffic::note) {
    const auto posted = root_->send(note.data(), std::ssize(note), 1, traffic);
    ASSERT_TRUE(root_->take_ended(posted));
  }
  /** Takes note number `number` at the other end, for as long as that lasts. */
  void expect(int number) {
    std::array<std::byte, Wire::kShort> room{};
    while (!other_->take(room.data(), Wire::kShort, Wire::Traffic::note, 0)) {
      ASSERT_FALSE(other_->are_in_trouble());
    }
    ASSERT_EQ(room[0], static_cast<std::byte>(number));
  }
  /** A note, and one that answers it, so often. */
  void answer_each(int times) {
    const Note answer{};
    for (int time = 0; time < times; ++time) {
      send(note_of(time));
      expect(time);
      ASSERT_TRUE(other_->take_ended(
          other_->send(answer.data(), std::ssize(answer), 0, Wire::Traffic::note)));
      std::array<std::byte, Wire::kShort> room{};
      while (!root_->take(room.data(), Wire::kShort, Wire::Traffic::note, 1)) {
        ASSERT_FALSE(root_->are_in_trouble());
      }
    }
  }
  unsigned segments_sent() const {
    tcp_info info{};
    socklen_t length = sizeof info;
    EXPECT_EQ(::getsockopt(number_, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
    return info.tcpi_data_segs_out;
  }
  /** Bytes that wait in the kernel. */
  int unsent() const {
    int bytes = 0;
    EXPECT_EQ(::ioctl(number_, SIOCOUTQNSD, &bytes), 0);
    return bytes;
  }
  /** Bytes that wait in the kernel for the other end to read them. */
  int unread() const {
    int bytes = 0;
    EXPECT_EQ(::ioctl(others_number_, FIONREAD, &bytes), 0);
    return bytes;
  }
  bool sends_at_once() const {
    int value = 0;
    socklen_t length = sizeof value;
    EXPECT_EQ(::getsockopt(number_, IPPROTO_TCP, TCP_NODELAY, &value, &length), 0);
    return value != 0;
  }

  int number_ = -1;
  int others_number_ = -1;
  std::unique_ptr<Streams> root_;
  std::unique_ptr<Streams> other_;
};

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

/** Of messages to and fro the kernel leaves the last unconfirmed, for 40 ms. */
TEST_F(GatheredNotesTest, WhoWaitsForOneConfirmsWhatCameBefore) {
  constexpr auto kExchange = Wire::Traffic::collective;
  Note room{};
  const auto exchange = [&] {
    const auto here = root_->receive(room.data(), std::ssize(room), 1, kExchange);
    const auto there = other_->receive(room.data(), std::ssize(room), 0, kExchange);
    ASSERT_TRUE(other_->take_ended(other_->send(room.data(), std::ssize(room), 0, kExchange)));
    while (!root_->take_ended(here)) root_->progress();
    send(note_of(1), kExchange);
    while (!other_->take_ended(there)) other_->progress();
  };
  std::array<std::byte, Wire::kShort> taken{};
  const auto unconfirmed = [&] {
    int bytes = 0;
    EXPECT_EQ(::ioctl(number_, SIOCOUTQ, &bytes), 0);
    return bytes;
  };
  for (int time = 0; time < 20; ++time) exchange();  // a new connection confirms each segment
  // Where this process gets no core meanwhile it is the other way round.
  int confirmed = 0;
  int returned_first = 0;
  for (int time = 0; time < 10; ++time) {
    exchange();
    ASSERT_FALSE(other_->take(taken.data(), Wire::kShort, Wire::Traffic::note, 0));
    if (unconfirmed() == 0) ++confirmed;
    send(note_of(time));
    expect(time);
    if (unconfirmed() > 0) ++returned_first;
  }
  EXPECT_GT(confirmed, 0);
  EXPECT_GT(returned_first, 0);  // the calls that read the notes
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
