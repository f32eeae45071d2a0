// Strangers at a store's server, and ranks of other hosts beside them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/hosts/store/remote_store.hpp"
#include "comm/hosts/store/store_frames.hpp"
#include "comm/hosts/store/store_server.hpp"
#include "comm/mpi/meeting/endpoint.hpp"
#include "comm/mpi/sockets/socket.hpp"
#include "rig/processes.hpp"
#include "rig/remote_store_fixture.hpp"
#include "tutti/error.hpp"

namespace tutti::test::remote_store_test {
namespace {

mpi::Socket stranger_at(const mpi::Endpoint& endpoint) {
  mpi::Socket socket = mpi::start_connecting(mpi::loopback_address(), endpoint.port);
  EXPECT_TRUE(holds_within(kPatience,
                           [&] { return mpi::connecting_state(socket) == mpi::Connecting::done; }));
  return socket;
}

TEST_F(RemoteStoreTest, StrangersLeaveNothingBehind) {
  serve();
  const mpi::Endpoint& endpoint = server_->endpoint();
  const auto mappings = [] {  // each thread that nobody joins keeps some
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  const auto before = mappings();
  for (int i = 0; i < 500; ++i) stranger_at(endpoint);
  RemoteStore(endpoint, 1, kNever).set("key", {});
  EXPECT_LT(mappings(), before + 300);
}

/** Not even more than there are places for; they lose their places. */
TEST_F(RemoteStoreTest, StrangersWhoSayNothingKeepNoRankOut) {
  serve();
  const mpi::Endpoint& endpoint = server_->endpoint();
  RemoteStore known(endpoint, 2, kNever);
  std::vector<mpi::Socket> silent;
  for (int i = 0; i < 150; ++i) silent.push_back(stranger_at(endpoint));
  RemoteStore store(endpoint, 1, 4s);  // which gives up after half of that
  store.set("key", filled(3, 'x'));
  EXPECT_EQ(get(known, "key"), filled(3, 'x'));
  std::byte nothing{};
  EXPECT_EQ(mpi::receive_exactly(silent.front(), std::span(&nothing, 1)), mpi::Received::closed);
}

/** A server of which the first `turned_away` connections end once their hello has come; the next
 * one is welcome. */
class Crowded {
 public:
  explicit Crowded(int turned_away) : listener_(mpi::listen_anywhere(port_)) {
    endpoint_ = mpi::Endpoint::at(port_);
    thread_ = std::thread([this, turned_away] {
      for (int i = 0; i <= turned_away; ++i) {
        mpi::Socket socket;
        holds_within(kPatience, [&] { return (socket = mpi::accept_from(listener_)).is_open(); });
        StoreHello hello;
        receive_bytes(socket, mpi::bytes_of(hello), {kPatience});
        ++hellos_;
        if (i < turned_away) continue;
        send_bytes(socket, hello.own, {kPatience});
        StoreRequest end;
        receive_bytes(socket, mpi::bytes_of(end), {kPatience});
      }
    });
  }
  Crowded(const Crowded&) = delete;
  Crowded& operator=(const Crowded&) = delete;
  ~Crowded() { thread_.join(); }

  const mpi::Endpoint& endpoint() const { return endpoint_; }
  int hellos() const { return hellos_; }

 private:
  std::uint16_t port_ = 0;
  mpi::Socket listener_;
  mpi::Endpoint endpoint_;
  std::atomic<int> hellos_ = 0;
  std::thread thread_;
};

TEST(CrowdedStore, LetsARankInThatItHasTakenForAStranger) {
  const Crowded server(2);
  { const RemoteStore store(server.endpoint(), 1, kNever); }
  EXPECT_EQ(server.hellos(), 3);
}

TEST(CrowdedStore, IsGivenUpByWhoIsTurnedAwayAgainAndAgain) {
  std::string error;
  {
    const Crowded server(3);
    try {
      const RemoteStore store(server.endpoint(), 1, kNever);
    } catch (const SystemError& reset) {
      error = reset.what();
    }
    EXPECT_EQ(server.hellos(), 3);
    RemoteStore(server.endpoint(), 1, kNever);  // or the server would wait for a fourth
  }
  EXPECT_EQ(error, "cannot connect to the store of rank 0: Connection reset by peer");
}

}  // namespace
}  // namespace tutti::test::remote_store_test
