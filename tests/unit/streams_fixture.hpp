// Two ends of Streams, for their tests.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/mpi/sockets/streams.hpp"

namespace tutti::test {

using Bytes = std::vector<std::byte>;
inline constexpr auto kKind = Wire::Traffic::collective;

/** `length` bytes that differ from those of other seeds. */
inline Bytes bytes(std::size_t length, unsigned seed) {
  Bytes made(length);
  for (std::size_t i = 0; i < length; ++i) {
    made[i] = static_cast<std::byte>((i * 7 + i / 251 + std::size_t{seed} * 31) & 255U);
  }
  return made;
}

/** Of one connection, with rank `rank`; a call of the kernel is given `most` bytes at most. */
inline std::unique_ptr<mpi::Streams> streams_with(int rank, mpi::Socket socket, std::int64_t most) {
  std::vector<mpi::Streams::Connection> connections;
  connections.push_back({rank, kKind, std::move(socket), most});
  return std::make_unique<mpi::Streams>(std::move(connections));
}

/** As many as connect_hosts() has it. */
inline std::unique_ptr<mpi::Streams> streams_with(int rank, mpi::Socket socket) {
  const std::int64_t most = mpi::Streams::most_at_once(socket);
  return streams_with(rank, std::move(socket), most);
}

/** Two ends of one connection: what is rank 1 at one is rank 0 at the other. */
class StreamsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
    left_ = streams_with(1, mpi::Socket(ends[0]));
    right_ = streams_with(0, mpi::Socket(ends[1]));
  }
  Wire::Posted send(const Bytes& data) {
    return left_->send(data.data(), std::ssize(data), 1, kKind);
  }
  Wire::Posted receive(Bytes& data) {
    return right_->receive(data.data(), std::ssize(data), 0, kKind);
  }
  /** Moves what both ends can move. */
  void move() {
    for (int i = 0; i < 100; ++i) {
      left_->progress();
      right_->progress();
    }
  }

  std::unique_ptr<mpi::Streams> left_;
  std::unique_ptr<mpi::Streams> right_;
};

}  // namespace tutti::test
