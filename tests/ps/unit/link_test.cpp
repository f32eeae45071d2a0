// Links between threads of one process: order, sizes, memory, and who is turned away.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ps/echo.hpp"
#include "ps/link/control.hpp"
#include "ps/link/epoll_links.hpp"
#include "ps/link/remote_link.hpp"
#include "ps/link/remote_peer.hpp"
#include "support/leftovers.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps::test::link_test {
namespace {

using namespace std::chrono_literals;
using tutti::test::text_of;

const Terms kTerms{"mode: async", "table item: dim 4"};
const RowFormat kFormat{{4}, WireFormat::f32};

/** Whether the two sides share memory, or are on different hosts. */
enum class Kind { host, remote };

/** A connection, both ends of it. */
std::pair<mpi::Socket, mpi::Socket> connection() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {mpi::Socket(ends[0]), mpi::Socket(ends[1])};
}

/** A server's thread, and links to it. */
class Serving {
 public:
  using Body = std::function<void(Links&)>;

  Serving(Kind kind, int workers, Body body) : kind_(kind), place_(listen_as(0)) {
    std::vector<std::unique_ptr<Peer>> peers;
    for (int worker = 0; worker < workers && kind == Kind::remote; ++worker) {
      auto [control, servers_control] = connection();
      auto [data, servers_data] = connection();
      ends_.push_back({std::move(control), std::move(data)});
      peers.push_back(std::make_unique<RemotePeer>(std::move(servers_control),
                                                   std::move(servers_data), worker, kFormat));
    }
    thread_ =
        std::thread([this, workers, body = std::move(body), peers = std::move(peers)]() mutable {
          std::unique_ptr<Links> links;
          if (kind_ == Kind::remote) {
            links = std::make_unique<EpollLinks>(std::move(peers));
          } else {
            links = meet_workers(std::move(place_.listener), worker_names(workers), kTerms, kFormat,
                                 "hello there", 20s);
          }
          body(*links);
        });
  }
  Serving(const Serving&) = delete;
  Serving& operator=(const Serving&) = delete;
  ~Serving() { thread_.join(); }

  std::unique_ptr<Link> join(int worker, std::chrono::milliseconds timeout = 20s) {
    if (kind_ == Kind::remote) {
      auto& [control, data] = ends_[static_cast<std::size_t>(worker)];
      return std::make_unique<RemoteLink>(std::move(control), std::move(data), server_name(0),
                                          kFormat, timeout);
    }
    const std::vector<ServerAddress> servers{address_of(0, place_.endpoint)};
    Meeting meeting = meet_servers(servers, worker, worker_name(worker), kTerms, kFormat, timeout);
    EXPECT_EQ(meeting.servers[0].greeting, "hello there");
    return std::move(meeting.servers[0].link);
  }

 private:
  Kind kind_;
  Place place_;
  std::vector<std::pair<mpi::Socket, mpi::Socket>> ends_;
  std::thread thread_;
};

/** The shared memory of tutti that this process has mapped and that still has a name. */
std::string named_memory() {
  std::ifstream maps("/proc/self/maps");
  std::string all;
  for (std::string line; std::getline(maps, line);) {
    const bool named = line.find("(deleted)") == std::string::npos;
    if (named && line.find("/dev/shm/tutti-") != std::string::npos) all += line + "\n";
  }
  return all;
}

class PsLink : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, PsLink, ::testing::Values(Kind::host, Kind::remote),
                         [](const auto& kind) {
                           return kind.param == Kind::host ? "Host" : "Remote";
                         });

TEST_P(PsLink, GreetsAndAnswersAndLeavesNothingBehind) {
  std::thread([] {}).join();  // with the first one ThreadSanitizer begins one of its own
  const tutti::test::Leftovers before;
  {
    std::vector<LostWorker> lost;
    {
      Serving server(GetParam(), 1, [&](Links& links) { lost = echo(links, 1); });
      const std::unique_ptr<Link> link = server.join(0);
      EXPECT_EQ(link->on_this_host(), GetParam() == Kind::host);
      EXPECT_EQ(named_memory(), "");
      for (const std::size_t bytes : {0U, 1U, 7U, 4095U, 4096U, 4097U, 100'000U, 5'000'000U}) {
        const auto sent = pattern(bytes, bytes);
        EXPECT_EQ(link->wait(send(*link, kEcho, sent)).payload, sent) << bytes;
      }
      stop(*link);
    }
    EXPECT_TRUE(lost.empty());
  }
  EXPECT_EQ(before.in_process(), "");
}

TEST_P(PsLink, ManyUnansweredRequestsKeepTheirOrderAroundTheRing) {
  constexpr std::uint64_t kRequests = 3 * kMostUnanswered + 5;
  std::vector<std::uint64_t> seen;
  Serving server(GetParam(), 1, [&](Links& links) {
    std::deque<Request> taken;
    while (seen.size() < kRequests) {
      const auto request = links.next(1s);
      if (request) {
        seen.push_back(request->number);
        EXPECT_EQ(request->payload.size(), request->number % 100);
        taken.push_back(*request);
      }
      // What has been handed out can be read until it is answered.
      while (taken.size() > 900 || (!request && !taken.empty())) {
        const Request& oldest = taken.front();
        for (const std::byte byte : oldest.payload) {
          ASSERT_EQ(byte, static_cast<std::byte>(oldest.number));
        }
        links.answer(oldest, {}, oldest.payload);
        taken.pop_front();
      }
    }
    for (const Request& request : taken) links.answer(request, {}, request.payload);
    echo(links, 1);
  });
  const std::unique_ptr<Link> link = server.join(0);
  for (std::uint64_t number = 1; number <= kRequests; ++number) {
    const std::vector<std::byte> payload(number % 100, static_cast<std::byte>(number));
    ASSERT_EQ(send(*link, RequestKind::set_dense, payload), number);
    if (number % 3 != 0) link->forget(number);
  }
  for (std::uint64_t number = 3; number <= kRequests; number += 3) {
    EXPECT_EQ(link->wait(number).payload.size(), number % 100);
  }
  EXPECT_GE(link->answered(), kRequests - 2);
  stop(*link);
  std::vector<std::uint64_t> expected(kRequests);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(seen, expected);
}

TEST_P(PsLink, ThreadsOfAWorkerShareALink) {
  Serving server(GetParam(), 1, [](Links& links) { echo(links, 1, 5); });
  const std::unique_ptr<Link> link = server.join(0);
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&link, thread] {
      for (std::size_t i = 0; i < 300; ++i) {
        const auto sent = pattern(i * 13, thread);
        EXPECT_EQ(link->wait(send(*link, kEcho, sent)).payload, sent);
        link->forget(send(*link, RequestKind::set_dense, sent));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(link->refusal().header.outcome, Outcome::done);
  stop(*link);
}

TEST(PsHostLink, WorkersTakeTurns) {
  // Both have sent all of theirs before the first is handed out.
  std::vector<int> order;
  std::atomic<int> ready = 0;
  Serving server(Kind::host, 2, [&](Links& links) {
    while (ready < 2) std::this_thread::yield();
    while (order.size() < 20) {
      const auto request = links.next(1s);
      if (!request) continue;
      order.push_back(request->worker);
      links.answer(*request, {}, {});
    }
    echo(links, 2);
  });
  const auto work = [&](int worker) {
    const std::unique_ptr<Link> link = server.join(worker);
    for (int i = 0; i < 10; ++i) {
      link->forget(send(*link, RequestKind::push_dense, {}));
    }
    ++ready;
    stop(*link);
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  for (std::size_t i = 2; i < order.size(); ++i) EXPECT_EQ(order[i], order[i - 2]);
}

TEST_P(PsLink, TheFirstRefusalOfWhatWasForgottenIsKept) {
  Serving server(GetParam(), 1, [](Links& links) {
    for (int answered = 0; answered < 3;) {
      const auto request = links.next(1s);
      if (!request) continue;
      const std::string text = "no " + std::to_string(++answered);
      const Outcome outcome = answered == 1 ? Outcome::done : Outcome::refused;
      links.answer(*request, {outcome}, std::as_bytes(std::span(text)));
    }
    echo(links, 1);
  });
  const std::unique_ptr<Link> link = server.join(0);
  for (int i = 0; i < 3; ++i) link->forget(send(*link, RequestKind::set_dense, {}));
  while (link->answered() < 3) std::this_thread::yield();
  const Reply refusal = link->refusal();
  EXPECT_EQ(refusal.header.outcome, Outcome::refused);
  const std::string text(reinterpret_cast<const char*>(refusal.payload.data()),
                         refusal.payload.size());
  EXPECT_EQ(text, "no 2");
  EXPECT_EQ(link->refusal().header.outcome, Outcome::done);
  stop(*link);
}

TEST(PsHostLink, MemoryThatIsNotThereIsRefusedAndTheLinkGoesOn) {
  Serving server(Kind::host, 1, [](Links& links) { echo(links, 1); });
  const std::unique_ptr<Link> link = server.join(0);
  const std::string text = text_of<SystemError>([&] { link->draft(std::int64_t{1} << 60); });
  EXPECT_NE(text.find("cannot reserve 1152921504606846976 bytes of shared memory"),
            std::string::npos)
      << text;
  text_of<SystemError>([&] { link->draft(std::int64_t{1} << 42); });
  const auto sent = pattern(1000, 1);
  EXPECT_EQ(link->wait(send(*link, kEcho, sent)).payload, sent);
  stop(*link);
}

TEST(PsHostLink, TheMemoryOfARequestThatIsRefusedIsUsedAgain) {
  Serving server(Kind::host, 1, [](Links& links) { echo(links, 1); });
  const std::unique_ptr<Link> link = server.join(0);
  const Draft draft = link->draft(100);
  EXPECT_EQ(
      text_of<InvalidArgument>([&] { link->send({.kind = kEcho, .payload_bytes = 101}, draft); }),
      "payload_bytes is 101, but the draft has 100");
  EXPECT_EQ(link->draft(100).payload.data(), draft.payload.data());
  stop(*link);
}

TEST_P(PsLink, WhatWasNotSentCannotBeWaitedForNorTwice) {
  Serving server(GetParam(), 1, [](Links& links) { echo(links, 1); });
  const std::unique_ptr<Link> link = server.join(0);
  EXPECT_EQ(text_of<InvalidArgument>([&] { link->wait(1); }), "request 1 has not been sent");
  link->wait(send(*link, RequestKind::barrier, {}));
  EXPECT_EQ(text_of<InvalidArgument>([&] { link->wait(1); }),
            "request 1 has been asked for before");
  stop(*link);
}

TEST_P(PsLink, AServerThatDropsAWorkerSaysSo) {
  Serving server(GetParam(), 1, [](Links& links) {
    while (!links.next(1s)) continue;
    links.drop(0);
    EXPECT_TRUE(links.lost().empty());
    EXPECT_FALSE(links.next(0s));
  });
  const std::unique_ptr<Link> link = server.join(0);
  const std::uint64_t number = send(*link, RequestKind::end_round, {});
  EXPECT_EQ(text_of<PeerLost>([&] { link->wait(number); }),
            "lost rank 100: server 0: it has given this worker up, for which others had waited "
            "until their deadline");
  text_of<PeerLost>([&] { link->check(); });
  text_of<PeerLost>([&] { link->draft(1); });
  text_of<PeerLost>([&] { link->answered(); });
}

/** Between hosts the two connections of a link may lose packets, each on its own. */
TEST(PsRemoteLink, WhyAServerDropsAWorkerMayComeAfterTheEndOfData) {
  auto [control, servers_control] = connection();
  auto [data, servers_data] = connection();
  RemoteLink link(std::move(control), std::move(data), server_name(0), kFormat, 20s);
  const std::uint64_t number = send(link, RequestKind::end_round, {});
  int calls = 0;
  const InterruptCheck check([&, control = &servers_control, data = &servers_data] {
    if (++calls == 1) *data = {};
    if (calls == 2) send(*control, ControlByte::late);
  });
  EXPECT_EQ(text_of<PeerLost>([&] { link.wait(number); }),
            "lost rank 100: server 0: it has given this worker up, for which others had waited "
            "until their deadline");
}

TEST_P(PsLink, AWorkerThatLeavesWithoutStopIsLostAfterItsLastRequest) {
  Serving server(GetParam(), 1, [](Links& links) {
    std::this_thread::sleep_for(20ms);
    int requests = 0;
    std::vector<LostWorker> lost;
    while (lost.empty()) {
      if (const auto request = links.next(1s)) {
        ++requests;
        links.answer(*request, {}, {});
      }
      lost = links.lost();
    }
    // Between hosts, what a thread has not sent yet has never been there.
    EXPECT_LE(requests, 3);
    EXPECT_GE(requests, GetParam() == Kind::host ? 3 : 0);
    EXPECT_EQ(lost[0].worker, 0);
    EXPECT_EQ(lost[0].reason, "it has left without stop: " + std::string(kMostReason - 1, 'x'));
  });
  const std::unique_ptr<Link> link = server.join(0);
  for (int i = 0; i < 3; ++i) send(*link, RequestKind::set_dense, pattern(10, 1));
  link->draft(100);
  link->set_reason(std::string(kMostReason - 1, 'x') + "\xC3\xA4");  // cut between characters
}

TEST_P(PsLink, WakeEndsAWait) {
  std::atomic<Links*> sleeping = nullptr;
  Serving server(GetParam(), 1, [&](Links& links) {
    sleeping = &links;
    EXPECT_FALSE(links.next(20s));
    sleeping = nullptr;
    echo(links, 1);
  });
  const std::unique_ptr<Link> link = server.join(0);
  while (sleeping == nullptr) std::this_thread::yield();
  sleeping.load()->wake();
  while (sleeping != nullptr) std::this_thread::yield();
  stop(*link);
}

TEST_P(PsLink, AServerThatIsNeverIdleCanBeInterrupted) {
  constexpr int kRequests = 200;
  std::atomic<bool> all_sent = false;
  Serving server(GetParam(), 1, [&](Links& links) {
    while (!all_sent) std::this_thread::yield();
    int handled = 0;
    const InterruptCheck check([] { throw std::domain_error("Ctrl-C"); });
    const auto handle_all = [&] {
      for (; handled < kRequests; ++handled) {
        while (!links.next(0ns)) {
        }
        const auto start = std::chrono::steady_clock::now();
        while (std::chrono::steady_clock::now() - start < 1ms) {
        }
      }
    };
    EXPECT_THROW(handle_all(), std::domain_error);
    EXPECT_LT(handled, kRequests);
  });
  const std::unique_ptr<Link> link = server.join(0);
  for (int i = 0; i < kRequests; ++i) send(*link, RequestKind::push_dense, {});
  all_sent = true;
}

TEST_P(PsLink, ADeadlineEndsAWait) {
  Serving server(GetParam(), 1, [](Links& links) {
    std::vector<LostWorker> lost;
    while (lost.empty()) {
      links.next(10ms);
      lost = links.lost();
    }
    ASSERT_EQ(lost.size(), 1U);
    EXPECT_EQ(lost[0].reason, "it has left without stop");
  });
  const std::unique_ptr<Link> link = server.join(0, 2s);
  const std::uint64_t number = send(*link, RequestKind::barrier, {});
  EXPECT_EQ(text_of<PeerLost>([&] { link->wait(number); }),
            "lost rank 100: server 0: it did not answer within 2.0 s");
}

}  // namespace
}  // namespace tutti::ps::test::link_test
