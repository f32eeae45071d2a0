// A worker wakes a server of its host that sleeps, by whatever the system lets it.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "ps/echo.hpp"
#include "ps/link/epoll_links.hpp"
#include "ps/link/host_link.hpp"
#include "ps/link/host_peer.hpp"

namespace tutti::ps::test::wake_test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/** A server that sleeps between requests, to which `change` leaves some ways to wake it. */
void expect_to_be_woken(const std::function<void(DoorbellAddress&)>& change) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  auto requests = std::make_unique<BlockHeap>(kPayloads);
  auto answers = std::make_unique<BlockHeap>(kPayloads);
  const auto answers_here = open_heap(answers->name(), kPayloads);
  std::vector<std::unique_ptr<Peer>> peers;
  peers.push_back(std::make_unique<HostPeer>(
      mpi::Socket(ends[0]), 0, open_heap(requests->name(), kPayloads), std::move(answers)));
  EpollLinks links(std::move(peers));
  auto* const area = reinterpret_cast<AnswerArea*>(answers_here->base());
  change(area->doorbell);

  HostLink link(mpi::Socket(ends[1]), server_name(0), std::move(requests), answers_here, 20s);
  std::thread server([&] { echo(links, 1); });
  auto shortest = Clock::duration::max();
  for (int i = 0; i < 3; ++i) {
    while (area->sleeping == 0) std::this_thread::sleep_for(1ms);
    std::this_thread::sleep_for(5ms);
    const auto begin = Clock::now();
    link.wait(send(link, kEcho, pattern(8, 1)));
    shortest = std::min(shortest, Clock::now() - begin);
  }
  EXPECT_LT(shortest, 500ms);  // it sleeps for a second
  stop(link);
  server.join();
}

TEST(PsWake, ByTheDoorbell) {
  expect_to_be_woken([](DoorbellAddress&) {});
}

TEST(PsWake, ByThePipeWithoutTheCounter) {
  expect_to_be_woken([](DoorbellAddress& doorbell) { doorbell.counter = -1; });
}

TEST(PsWake, ByTheConnectionWithoutADoorbell) {
  expect_to_be_woken([](DoorbellAddress& doorbell) { doorbell.process = 0; });
}

}  // namespace
}  // namespace tutti::ps::test::wake_test
