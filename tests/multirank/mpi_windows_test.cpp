// What carries long windows between hosts: MPI in pieces, connections as they are.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/batch.hpp"
#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/broadcast.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/mpi/channel.hpp"
#include "multirank/host_each.hpp"

namespace tutti::test::mpi_windows_test {
namespace {

using mpi::Channel;
using Bytes = std::vector<std::byte>;

class MpiWindows : public HostEach {
 protected:
  /** In how many messages rank 0 sends rank 1 so many bytes. */
  static std::int64_t messages_for(const char* carrier, std::size_t length) {
    auto channel = channel_over(carrier);
    Bytes data(length, channel->rank() == 0 ? std::byte{7} : std::byte{0});
    const std::int64_t before = messages_of(*channel);
    if (channel->rank() < 2) {
      Batch batch(*channel, Wire::Traffic::collective);
      if (channel->rank() == 0) batch.send(data.data(), std::ssize(data), 1);
      if (channel->rank() == 1) batch.recv(data.data(), std::ssize(data), 0);
      batch.wait();
      EXPECT_EQ(data, Bytes(length, std::byte{7}));
    }
    const std::int64_t messages = messages_of(*channel) - before;
    meet();
    Channel::leave(std::move(channel));
    return messages;
  }

  /** The sums of some windows and a bit; the average length of the messages that carried them. */
  static std::pair<std::vector<float>, std::int64_t> add_up(const char* carrier) {
    constexpr std::int64_t kCount = 5 * Wire::kLongPiece / sizeof(float) + 1003;
    auto channel = channel_over(carrier);
    EXPECT_EQ(channel->has_streams(), std::string_view(carrier) == "tcp");
    const HostGroup group(*channel, everybody());
    const AllReduce all_reduce(group, true);
    EXPECT_GT(all_reduce.first_segment(kCount, DType::f32) * std::int64_t{sizeof(float)},
              group.size() * Wire::kPiece);
    std::vector<float> data(kCount);
    for (std::size_t i = 0; i < data.size(); ++i) {
      data[i] = static_cast<float>((i * 7 + i / 251) % 1021) + static_cast<float>(channel->rank());
    }
    all_reduce.run(data.data(), kCount, DType::f32, {});
    const std::int64_t messages = messages_of(*channel);
    const std::int64_t bytes = channel->bytes_sent();
    meet();
    Channel::leave(std::move(channel));
    return {data, bytes / messages};
  }
};

TEST_F(MpiWindows, GoOverMpiInPieces) {
  const auto [by_mpi, piece] = add_up("mpi");
  const auto [by_tcp, window] = add_up("tcp");
  const int ranks = session()->size();
  const int sum_of_ranks = ranks * (ranks - 1) / 2;
  for (std::size_t i = 0; i < by_mpi.size(); ++i) {
    const auto each = static_cast<float>((i * 7 + i / 251) % 1021);
    ASSERT_EQ(by_mpi[i], static_cast<float>(ranks) * each + static_cast<float>(sum_of_ranks)) << i;
  }
  EXPECT_EQ(by_mpi, by_tcp);
  EXPECT_LE(piece, Wire::kPiece);
  EXPECT_GT(window, 4 * Wire::kPiece);
}

TEST_F(MpiWindows, MessagesOverConnectionsAreWhole) {
  constexpr std::size_t kLength = 9 * Wire::kLongPiece + 3;
  const std::int64_t pieces = (kLength + Wire::kPiece - 1) / Wire::kPiece;
  const bool sends = session()->rank() == 0;
  EXPECT_EQ(messages_for("tcp", kLength), sends ? 1 : 0);
  EXPECT_EQ(messages_for("mpi", kLength), sends ? pieces : 0);
}

/** A long broadcast over connections goes from host to host, as it comes: each sends it once. */
TEST_F(MpiWindows, ALongBroadcastIsOneMessageToTheNextHost) {
  constexpr std::size_t kLength = 3 * Wire::kLongPiece + 5;
  const int ranks = session()->size();
  for (int root = 0; root < ranks; ++root) {
    for (const char* const carrier : {"tcp", "mpi"}) {
      auto channel = channel_over(carrier);
      const bool by_tcp = channel->has_streams();
      EXPECT_EQ(channel->passes_on(everybody()), by_tcp);
      const bool is_root = channel->rank() == root;
      Bytes data(kLength, is_root ? std::byte{7} : std::byte{0});
      broadcast_from(HostGroup(*channel, everybody()), root, data.data(), std::ssize(data));
      EXPECT_EQ(data, Bytes(kLength, std::byte{7}));
      const bool is_last = (channel->rank() + 1) % ranks == root;
      if (by_tcp) {
        EXPECT_EQ(messages_of(*channel), is_last ? 0 : 1) << channel->rank();
        EXPECT_EQ(channel->bytes_sent(), is_last ? 0 : std::ssize(data));
      }
      meet();
      Channel::leave(std::move(channel));
    }
  }
}

/** What keeps a deadline off: see Batch::wait(). */
TEST_F(MpiWindows, PartsOfAPieceCountAsMovement) {
  auto channel = channel_over("tcp");
  Bytes data(static_cast<std::size_t>(Wire::kLongPiece), std::byte{5});
  const int rank = channel->rank();
  if (rank < 2) {
    Batch batch(*channel, Wire::Traffic::collective);
    // Parts move, without an end, until one of the two would have to do something.
    const auto expect_a_part = [&batch] {
      EXPECT_TRUE(batch.progress());
      while (batch.progress()) {
      }
      EXPECT_FALSE(batch.done());
    };
    if (rank == 0) batch.send(data.data(), std::ssize(data), 1);
    if (rank == 0) expect_a_part();  // more than kernels take of what nobody reads
    meet();
    if (rank == 1) {
      data.assign(data.size(), std::byte{0});
      batch.recv(data.data(), std::ssize(data), 0);
      expect_a_part();
    }
    meet();
    batch.wait();
  } else {
    meet();
    meet();
  }
  EXPECT_EQ(data, Bytes(data.size(), std::byte{5}));
  meet();
  Channel::leave(std::move(channel));
}

/** What keeps a wait from napping: not so many bytes as a slow wire brings meanwhile. */
TEST_F(MpiWindows, PartsThatComeFastFlow) {
  auto channel = channel_over("tcp");
  Bytes data(static_cast<std::size_t>(9 * Wire::kLongPiece), std::byte{5});
  const int rank = channel->rank();
  if (rank < 2) {
    Batch batch(*channel, Wire::Traffic::collective);
    EXPECT_FALSE(channel->is_flowing());
    if (rank == 0) batch.send(data.data(), std::ssize(data), 1);
    if (rank == 1) batch.recv(data.data(), std::ssize(data), 0);
    int flows = 0;
    while (!batch.done()) {
      batch.progress();
      if (channel->is_flowing()) ++flows;
      EXPECT_FALSE(channel->is_flowing());  // as nothing has moved since
    }
    EXPECT_GT(flows, 0);
    EXPECT_LE(flows, std::ssize(data) / (4 * Wire::kPiece));
  }
  meet();
  Channel::leave(std::move(channel));
}

}  // namespace
}  // namespace tutti::test::mpi_windows_test
