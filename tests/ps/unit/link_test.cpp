// Links between threads of one process: order, sizes, memory, and who is turned away.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "ps/echo.hpp"
#include "support/leftovers.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test {
namespace {

using namespace std::chrono_literals;
using tutti::test::text_of;

const Terms kTerms{"mode: async", "table item: dim 4"};
const RowFormat kFormat{{4}, WireFormat::f32};

std::vector<Joined> join(const Place& place, int worker, std::chrono::milliseconds timeout = 20s,
                         const Terms& terms = kTerms) {
  const std::vector<ServerAddress> servers{address_of(0, place.endpoint)};
  return meet_servers(servers, worker, worker_name(worker), terms, kFormat, timeout);
}

/** A server's thread. */
class Serving {
 public:
  using Body = std::function<void(Links&)>;
  explicit Serving(int workers, Body body, std::chrono::milliseconds timeout = 20s)
      : place_(listen_as(0)), thread_([this, workers, body = std::move(body), timeout] {
          const auto links = meet_workers(std::move(place_.listener), worker_names(workers), kTerms,
                                          kFormat, "hello there", timeout);
          body(*links);
        }) {}
  ~Serving() { thread_.join(); }
  const Place& place() const { return place_; }

 private:
  Place place_;
  std::thread thread_;
};

TEST(PsLink, GreetsAndAnswersAndLeavesNothingBehind) {
  const tutti::test::Leftovers before;
  {
    std::vector<LostWorker> lost;
    {
      const Serving server(1, [&](Links& links) { lost = echo(links, 1); });
      std::vector<Joined> joined = join(server.place(), 0);
      ASSERT_EQ(joined.size(), 1U);
      EXPECT_EQ(joined[0].greeting, "hello there");
      Link& link = *joined[0].link;
      EXPECT_TRUE(link.on_this_host());
      for (const std::size_t bytes : {0U, 1U, 7U, 4095U, 4096U, 4097U, 100'000U, 5'000'000U}) {
        const auto sent = pattern(bytes, bytes);
        EXPECT_EQ(link.wait(send(link, RequestKind::look_up, sent)).payload, sent) << bytes;
      }
      stop(link);
    }
    EXPECT_TRUE(lost.empty());
  }
  EXPECT_EQ(before.in_process(), "");
  EXPECT_EQ(before.in_dev_shm(), "");
}

TEST(PsLink, ManyUnansweredRequestsKeepTheirOrderAroundTheRing) {
  constexpr std::uint64_t kRequests = 3 * kMostUnanswered + 5;
  std::vector<std::uint64_t> seen;
  const Serving server(1, [&](Links& links) {
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
  std::vector<Joined> joined = join(server.place(), 0);
  Link& link = *joined[0].link;
  for (std::uint64_t number = 1; number <= kRequests; ++number) {
    const std::vector<std::byte> payload(number % 100, static_cast<std::byte>(number));
    ASSERT_EQ(send(link, RequestKind::push_rows, payload), number);
    if (number % 3 != 0) link.forget(number);
  }
  for (std::uint64_t number = 3; number <= kRequests; number += 3) {
    EXPECT_EQ(link.wait(number).payload.size(), number % 100);
  }
  EXPECT_GE(link.answered(), kRequests - 2);
  stop(link);
  std::vector<std::uint64_t> expected(kRequests);
  std::iota(expected.begin(), expected.end(), 1);
  EXPECT_EQ(seen, expected);
}

TEST(PsLink, ThreadsOfAWorkerShareALink) {
  const Serving server(1, [](Links& links) { echo(links, 1, 5); });
  std::vector<Joined> joined = join(server.place(), 0);
  Link& link = *joined[0].link;
  std::vector<std::thread> threads;
  for (std::size_t thread = 0; thread < 3; ++thread) {
    threads.emplace_back([&link, thread] {
      for (std::size_t i = 0; i < 300; ++i) {
        const auto sent = pattern(i * 13, thread);
        EXPECT_EQ(link.wait(send(link, RequestKind::look_up, sent)).payload, sent);
        link.forget(send(link, RequestKind::push_rows, sent));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(link.refusal().header.outcome, Outcome::done);
  stop(link);
}

TEST(PsLink, WorkersTakeTurns) {
  // Both have sent all of theirs before the first is handed out.
  std::vector<int> order;
  std::atomic<int> ready = 0;
  const Serving server(2, [&](Links& links) {
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
    std::vector<Joined> joined = join(server.place(), worker);
    for (int i = 0; i < 10; ++i) {
      joined[0].link->forget(send(*joined[0].link, RequestKind::push_dense, {}));
    }
    ++ready;
    stop(*joined[0].link);
  };
  std::thread other([&] { work(1); });
  work(0);
  other.join();
  for (std::size_t i = 2; i < order.size(); ++i) EXPECT_EQ(order[i], order[i - 2]);
}

TEST(PsLink, TheFirstRefusalOfWhatWasForgottenIsKept) {
  const Serving server(1, [](Links& links) {
    for (int answered = 0; answered < 3;) {
      const auto request = links.next(1s);
      if (!request) continue;
      const std::string text = "no " + std::to_string(++answered);
      const Outcome outcome = answered == 1 ? Outcome::done : Outcome::refused;
      links.answer(*request, {outcome}, std::as_bytes(std::span(text)));
    }
    echo(links, 1);
  });
  std::vector<Joined> joined = join(server.place(), 0);
  Link& link = *joined[0].link;
  for (int i = 0; i < 3; ++i) link.forget(send(link, RequestKind::push_rows, {}));
  while (link.answered() < 3) std::this_thread::yield();
  const Reply refusal = link.refusal();
  EXPECT_EQ(refusal.header.outcome, Outcome::refused);
  const std::string text(reinterpret_cast<const char*>(refusal.payload.data()),
                         refusal.payload.size());
  EXPECT_EQ(text, "no 2");
  EXPECT_EQ(link.refusal().header.outcome, Outcome::done);
  stop(link);
}

TEST(PsLink, MemoryThatIsNotThereIsRefusedAndTheLinkGoesOn) {
  const Serving server(1, [](Links& links) { echo(links, 1); });
  std::vector<Joined> joined = join(server.place(), 0);
  Link& link = *joined[0].link;
  const std::string text = text_of<SystemError>([&] { link.draft(std::int64_t{1} << 60); });
  EXPECT_NE(text.find("cannot reserve 1152921504606846976 bytes of shared memory"),
            std::string::npos)
      << text;
  text_of<SystemError>([&] { link.draft(std::int64_t{1} << 42); });
  const auto sent = pattern(1000, 1);
  EXPECT_EQ(link.wait(send(link, RequestKind::look_up, sent)).payload, sent);
  stop(link);
}

TEST(PsLink, WhatWasNotSentCannotBeWaitedForNorTwice) {
  const Serving server(1, [](Links& links) { echo(links, 1); });
  std::vector<Joined> joined = join(server.place(), 0);
  Link& link = *joined[0].link;
  EXPECT_EQ(text_of<InvalidArgument>([&] { link.wait(1); }), "request 1 has not been sent");
  link.wait(send(link, RequestKind::barrier, {}));
  EXPECT_EQ(text_of<InvalidArgument>([&] { link.wait(1); }), "request 1 has been asked for before");
  stop(link);
}

TEST(PsLink, AServerThatDropsAWorkerSaysSo) {
  const Serving server(1, [](Links& links) {
    while (!links.next(1s)) continue;
    links.drop(0);
    EXPECT_TRUE(links.lost().empty());
    EXPECT_FALSE(links.next(0s));
  });
  std::vector<Joined> joined = join(server.place(), 0);
  Link& link = *joined[0].link;
  const std::uint64_t number = send(link, RequestKind::end_round, {});
  EXPECT_EQ(text_of<PeerLost>([&] { link.wait(number); }),
            "lost rank 100: server 0: it serves this worker no longer");
  text_of<PeerLost>([&] { link.check(); });
  text_of<PeerLost>([&] { link.draft(1); });
  text_of<PeerLost>([&] { link.answered(); });
}

TEST(PsLink, AWorkerThatLeavesWithoutStopIsLostAfterItsLastRequest) {
  const Serving server(1, [](Links& links) {
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
    EXPECT_EQ(requests, 3);
    EXPECT_EQ(lost[0].worker, 0);
    EXPECT_EQ(lost[0].reason, "it has left without stop");
  });
  std::vector<Joined> joined = join(server.place(), 0);
  for (int i = 0; i < 3; ++i) send(*joined[0].link, RequestKind::push_rows, pattern(10, 1));
  joined[0].link->draft(100);
}

TEST(PsLink, WakeEndsAWait) {
  std::atomic<Links*> sleeping = nullptr;
  const Serving server(1, [&](Links& links) {
    sleeping = &links;
    EXPECT_FALSE(links.next(20s));
    sleeping = nullptr;
    echo(links, 1);
  });
  std::vector<Joined> joined = join(server.place(), 0);
  while (sleeping == nullptr) std::this_thread::yield();
  sleeping.load()->wake();
  while (sleeping != nullptr) std::this_thread::yield();
  stop(*joined[0].link);
}

TEST(PsLink, ADeadlineEndsAWait) {
  std::atomic<bool> done = false;
  const Serving server(1, [&](Links& links) {
    while (!done) links.next(10ms);
    while (links.next(1s)) continue;
    const std::vector<LostWorker> lost = links.lost();
    ASSERT_EQ(lost.size(), 1U);
    EXPECT_EQ(lost[0].reason, "it has left without stop");
  });
  {
    std::vector<Joined> joined = join(server.place(), 0, 200ms);
    Link& link = *joined[0].link;
    const std::uint64_t number = send(link, RequestKind::barrier, {});
    EXPECT_EQ(text_of<PeerLost>([&] { link.wait(number); }),
              "lost rank 100: server 0: it did not answer within 0.2 s");
  }
  done = true;
}

}  // namespace
}  // namespace tutti::ps::test
