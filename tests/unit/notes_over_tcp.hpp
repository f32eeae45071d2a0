// Two ends of a connection that carries notes, for their tests.
#pragma once

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

#include "comm/mpi/sockets/streams.hpp"
#include "streams_fixture.hpp"
#include "tcp_pair.hpp"

namespace tutti::test {

using Note = std::array<std::byte, 100>;

inline Note note_of(int number) {
  Note note{};
  note[0] = static_cast<std::byte>(number);
  return note;
}

/** Two ends of a TCP connection: rank 1 at the root's is rank 0 at the other's. */
class NotesOverTcp : public ::testing::Test {
 protected:
  void SetUp() override {
    auto ends = mpi::tcp_pair();
    for (const mpi::Socket& end : ends) ASSERT_TRUE(mpi::send_at_once(end));
    number_ = ends[0].get();
    others_number_ = ends[1].get();
    root_ = streams_with(1, std::move(ends[0]));
    other_ = streams_with(0, std::move(ends[1]));
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
  int unsent() const { return bytes_by(SIOCOUTQNSD, number_); }
  /** Bytes that wait in the kernel for the other end to read them. */
  int unread() const { return bytes_by(FIONREAD, others_number_); }
  /** Bytes that the other end's kernel has not confirmed. */
  int unconfirmed() const { return bytes_by(SIOCOUTQ, number_); }
  static int bytes_by(unsigned long question, int socket) {
    int bytes = 0;
    EXPECT_EQ(::ioctl(socket, question, &bytes), 0);
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
  std::unique_ptr<mpi::Streams> root_;
  std::unique_ptr<mpi::Streams> other_;
};

}  // namespace tutti::test
