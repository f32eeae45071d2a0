// What a worker of another host has sent whole is served, though it has ended meanwhile.
#include "ps/link/remote_peer.hpp"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "ps/link/control.hpp"
#include "ps/link/epoll_links.hpp"
#include "ps/link/frame.hpp"

namespace tutti::ps::test::remote_peer_test {
namespace {

using namespace std::chrono_literals;

const RowFormat kFormat{{4}, WireFormat::f32};

std::pair<mpi::Socket, mpi::Socket> connection() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {mpi::Socket(ends[0]), mpi::Socket(ends[1])};
}

TEST(PsRemotePeer, AllThatAWorkerHasSentBeforeItsEndIsHandedOut) {
  auto [control, servers_control] = connection();
  auto [data, servers_data] = connection();
  RemotePeer peer(std::move(servers_control), std::move(servers_data), 0, kFormat);

  /** So long that no more is read until it has been handed out. */
  constexpr std::int64_t kLong = std::int64_t{64} << 20;
  for (const std::int64_t bytes : {kLong, std::int64_t{8}, std::int64_t{16}}) {
    const RequestHeader header{.kind = RequestKind::set_dense, .payload_bytes = bytes};
    OutgoingFrame<RequestFrame> frame({header, 0}, shape_of(header, kFormat), PayloadMemory(bytes),
                                      WireFormat::f32);
    int error = 0;
    std::int64_t budget = INT64_MAX;
    while (frame.send(data, budget, error) == Moved::some) peer.handle_data();
  }
  control = {};
  data = {};
  peer.handle_control();

  std::vector<std::int64_t> lengths;
  while (const std::optional<Request> request = peer.take()) {
    lengths.push_back(request->header.payload_bytes);
  }
  EXPECT_EQ(lengths, (std::vector<std::int64_t>{kLong, 8, 16}));
  EXPECT_EQ(peer.loss(), "its process has ended");
}

/** Between hosts the two connections of a link may lose packets, each on its own. */
class PsRemotePeerEnd : public ::testing::Test {
 protected:
  PsRemotePeerEnd() {
    auto [control, servers_control] = connection();
    auto [data, servers_data] = connection();
    std::vector<std::unique_ptr<Peer>> peers;
    peers.push_back(std::make_unique<RemotePeer>(std::move(servers_control),
                                                 std::move(servers_data), 0, kFormat));
    links_.emplace(std::move(peers));
    control_ = std::move(control);
    data_ = std::move(data);
  }
  /** Of the worker's loss, within `limit`. */
  std::string reason(std::chrono::milliseconds limit) {
    for (Deadline deadline(limit); !deadline.expired();) {
      links_->next(10ms);
      const std::vector<LostWorker> lost = links_->lost();
      if (!lost.empty()) return lost[0].reason;
    }
    return "none";
  }

  std::optional<EpollLinks> links_;
  mpi::Socket control_;
  mpi::Socket data_;
};

TEST_F(PsRemotePeerEnd, WhyAWorkerLeavesMayComeAfterTheEndOfData) {
  data_ = {};
  EXPECT_EQ(reason(30ms), "none");
  const std::string text = std::string(1, static_cast<char>(ControlByte::left)) + "no more data";
  EXPECT_TRUE(mpi::send_all(control_, std::as_bytes(std::span(text))));
  control_ = {};
  EXPECT_EQ(reason(20s), "it has left without stop: no more data");
}

TEST_F(PsRemotePeerEnd, WhoSaysNothingAfterTheEndOfDataIsLostAllTheSame) {
  data_ = {};
  EXPECT_EQ(reason(20s), "its process has ended");
}

}  // namespace
}  // namespace tutti::ps::test::remote_peer_test
