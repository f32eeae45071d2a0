// Workers and servers that are processes: some are killed, stopped, late, mistaken or strangers.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ps/echo.hpp"
#include "rig/processes.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::ps::test {
namespace {

using namespace std::chrono_literals;
using tutti::test::holds_within;
using tutti::test::outcome_of;
using tutti::test::Processes;
using tutti::test::Report;
using tutti::test::Shared;

constexpr std::chrono::milliseconds kNever = 100s;  // a deadline that no test waits for
constexpr std::chrono::milliseconds kPatience = 30s;
constexpr std::chrono::milliseconds kAtOnce = 5s;  // and not when a deadline has passed
constexpr int kMost = 4;

const Terms kTerms{"mode: async", "table item: dim 4", "table user: dim 8"};
const RowFormat kFormat{{4, 8}, WireFormat::f32};

/** What the processes of a test share. */
struct Board {
  std::array<mpi::Endpoint, kMost> endpoints;
  std::array<std::atomic<bool>, kMost> listens;
  std::array<Report, kMost> workers;
  std::array<Report, kMost> servers;
};

/** Each test twice: all processes on one host, and the workers on another than the servers. */
class PsLinkLoss : public ::testing::TestWithParam<bool> {
 protected:
  using ServerBody = std::function<void(Links&, Report&)>;
  using WorkerBody = std::function<void(std::vector<Joined>&, Report&)>;

  void start_server(
      int server, int workers, const ServerBody& body, const Terms& terms = kTerms,
      std::chrono::milliseconds timeout = kNever, const std::function<void()>& before = [] {}) {
    const auto at = static_cast<std::size_t>(server);
    servers_.start([&, at] {
      pretend("servers");
      Report& report = board_->servers[at];
      Place place = listen_as(server);
      board_->endpoints[at] = place.endpoint;
      board_->listens[at] = true;
      const std::string outcome = outcome_of([&] {
        before();
        const auto links = meet_workers(std::move(place.listener), worker_names(workers), terms,
                                        kFormat, "hello", timeout);
        body(*links, report);
      });
      if (!report.ended) report.end_with(outcome);
    });
    ASSERT_TRUE(holds_within(kPatience, [&] { return board_->listens[at].load(); }));
  }

  void start_worker(int worker, int servers, const WorkerBody& body, const Terms& terms = kTerms,
                    std::chrono::milliseconds timeout = kNever) {
    workers_.start([&, this] {
      pretend("workers");
      Report& report = board_->workers[static_cast<std::size_t>(worker)];
      std::vector<ServerAddress> addresses;
      for (int server = 0; server < servers; ++server) {
        addresses.push_back(
            address_of(server, board_->endpoints[static_cast<std::size_t>(server)]));
      }
      const std::string outcome = outcome_of([&] {
        Meeting meeting =
            meet_servers(addresses, worker, worker_name(worker), terms, kFormat, timeout);
        if (!meeting.mismatch.empty()) throw MismatchError(meeting.mismatch);
        body(meeting.servers, report);
      });
      if (!report.ended) report.end_with(outcome);
    });
  }

  /** On a host of its own, as far as tutti is concerned. */
  static void pretend(const char* host) {
    if (GetParam()) ::setenv("TUTTI_HOST_ID", host, 1);
  }

  Report& worker(int number) { return board_->workers[static_cast<std::size_t>(number)]; }
  Report& server(int number) { return board_->servers[static_cast<std::size_t>(number)]; }
  static std::string outcome(Report& report, std::chrono::milliseconds limit = kPatience) {
    EXPECT_TRUE(holds_within(limit, [&] { return report.ended.load(); })) << "does not end";
    return report.outcome.data();
  }

  Shared<Board> board_;
  Processes servers_;
  Processes workers_;
};

INSTANTIATE_TEST_SUITE_P(Hosts, PsLinkLoss, ::testing::Values(false, true),
                         [](const auto& hosts) { return hosts.param ? "Two" : "One"; });

/** Echoes, and tells who was lost. */
void serve(Links& links, Report& report, int workers) {
  std::string text = "lost:";
  for (const LostWorker& lost : echo(links, workers)) {
    text += " " + std::to_string(lost.worker) + " " + lost.reason;
  }
  report.end_with(text);
}

TEST_P(PsLinkLoss, ManyWorkersAndServersMeetAndPart) {
  for (int number = 0; number < 2; ++number) {
    start_server(number, 4, [](Links& links, Report& report) { serve(links, report, 4); });
  }
  for (int number = 0; number < 4; ++number) {
    start_worker(number, 2, [number](std::vector<Joined>& joined, Report& /*report*/) {
      for (std::size_t i = 0; i < 200; ++i) {
        for (const Joined& one : joined) {
          if (one.link->on_this_host() == GetParam()) throw Error("shares the wrong memory");
          const auto sent = pattern(i * 97, static_cast<std::size_t>(number));
          const std::uint64_t first = send(*one.link, RequestKind::push_dense, pattern(8, 1));
          const Reply reply = one.link->wait(send(*one.link, kEcho, sent));
          if (reply.payload != sent) throw Error("a wrong answer");
          one.link->wait(first);
        }
      }
      for (const Joined& one : joined) stop(*one.link);
    });
  }
  for (int number = 0; number < 4; ++number) EXPECT_EQ(outcome(worker(number)), "nothing");
  for (int number = 0; number < 2; ++number) EXPECT_EQ(outcome(server(number)), "lost:");
}

TEST_P(PsLinkLoss, AWorkerKilledInTheMiddleOfADraftHasSentNoneOfIt) {
  start_server(0, 2, [](Links& links, Report& report) {
    std::string text;
    int stops = 0;
    while (stops + static_cast<int>(text.size() > 0) < 2) {
      if (const auto request = links.next(100ms)) {
        if (request->worker == 1) ++report.calls;
        stops += request->header.kind == RequestKind::stop ? 1 : 0;
        links.answer(*request, {}, {});
      }
      for (const LostWorker& lost : links.lost()) text += std::to_string(lost.worker) + lost.reason;
    }
    report.end_with(text);
  });
  start_worker(0, 1, [this](std::vector<Joined>& joined, Report& /*report*/) {
    while (!server(0).ended && worker(1).calls < 2)
      joined[0].link->wait(send(*joined[0].link, kEcho, {}));
    stop(*joined[0].link);
  });
  start_worker(1, 1, [](std::vector<Joined>& joined, Report& report) {
    Link& link = *joined[0].link;
    for (int i = 0; i < 3; ++i) link.wait(send(link, RequestKind::push_dense, pattern(4000, 1)));
    const Draft draft = link.draft(1 << 20);
    std::memset(draft.payload.data(), 1, 1000);
    report.calls = 1;
    std::this_thread::sleep_for(kNever);
  });
  ASSERT_TRUE(holds_within(kPatience, [&] { return worker(1).calls == 1; }));
  workers_.send(1, SIGKILL);
  worker(1).calls = 2;
  EXPECT_EQ(outcome(server(0)), "1its process has ended");
  EXPECT_EQ(server(0).calls, 3U);
  EXPECT_EQ(outcome(worker(0)), "nothing");
}

/** A child that outlives its parent, until `over`. */
void fork_one_that_stays(const std::atomic<bool>& over) {
  if (::fork() != 0) return;
  holds_within(kPatience, [&] { return over.load(); });
  std::_Exit(0);
}

TEST_P(PsLinkLoss, AKilledWorkerWhoseChildrenLiveIsNamedAtOnce) {
  start_server(0, 1, [](Links& links, Report& report) { serve(links, report, 1); });
  start_worker(0, 1, [this](std::vector<Joined>& /*joined*/, Report& report) {
    fork_one_that_stays(server(0).ended);
    report.calls = 1;
    std::this_thread::sleep_for(kNever);
  });
  ASSERT_TRUE(holds_within(kPatience, [&] { return worker(0).calls == 1; }));
  workers_.send(0, SIGKILL);
  EXPECT_EQ(outcome(server(0), kAtOnce), "lost: 0 its process has ended");
  server(0).ended = true;
}

TEST_P(PsLinkLoss, AKilledServerWhoseChildrenLiveIsNamedAtOnce) {
  start_server(0, 1, [this](Links& links, Report& report) {
    fork_one_that_stays(worker(0).ended);
    report.calls = 1;
    while (true) links.next(kNever);
  });
  start_worker(0, 1, [](std::vector<Joined>& joined, Report& /*report*/) {
    joined[0].link->wait(send(*joined[0].link, RequestKind::end_round, {}));
  });
  ASSERT_TRUE(holds_within(kPatience, [&] { return server(0).calls == 1; }));
  servers_.send(0, SIGKILL);
  EXPECT_EQ(outcome(worker(0), kAtOnce),
            "lost 100: lost rank 100: server 0: its process has ended");
  worker(0).ended = true;
}

TEST_P(PsLinkLoss, AKilledServerIsNamedAtOnceAndTheOthersGoOn) {
  for (int number = 0; number < 2; ++number) {
    start_server(number, 2, [](Links& links, Report& report) {
      echo(links, 2, 1000);  // what has no answer stays so
      report.end_with("done");
    });
  }
  for (int number = 0; number < 2; ++number) {
    start_worker(number, 2, [number](std::vector<Joined>& joined, Report& report) {
      const std::uint64_t asked = send(*joined[1].link, RequestKind::end_round, {});
      ++report.calls;
      const std::string text = outcome_of([&] {
        if (number == 0) joined[1].link->wait(asked);
        while (true) {  // a loop that computes, and looks now and then
          joined[1].link->check();
          std::this_thread::sleep_for(1ms);
        }
      });
      stop(*joined[0].link);
      report.end_with(text + "; " + outcome_of([&] { joined[1].link->draft(10); }));
    });
  }
  for (int number = 0; number < 2; ++number) {
    ASSERT_TRUE(holds_within(kPatience, [&] { return worker(number).calls == 1; }));
  }
  servers_.send(1, SIGKILL);
  const std::string lost = "lost 101: lost rank 101: server 1: its process has ended";
  const std::string twice = lost + "; " + lost;
  for (int number = 0; number < 2; ++number) {
    EXPECT_EQ(outcome(worker(number), kAtOnce), twice);
  }
  EXPECT_EQ(outcome(server(0)), "done");
}

TEST_P(PsLinkLoss, AStoppedServerIsNamedAtTheDeadline) {
  start_server(0, 1, [](Links& links, Report& /*report*/) { echo(links, 1); });
  start_worker(
      0, 1,
      [](std::vector<Joined>& joined, Report& report) {
        report.calls = 1;
        while (report.calls == 1) std::this_thread::yield();
        joined[0].link->wait(send(*joined[0].link, kEcho, pattern(100, 1)));
      },
      kTerms, 2s);
  ASSERT_TRUE(holds_within(kPatience, [&] { return worker(0).calls == 1; }));
  servers_.send(0, SIGSTOP);
  ASSERT_TRUE(servers_.stops(0, kPatience));
  worker(0).calls = 2;
  EXPECT_EQ(outcome(worker(0)),
            "lost 100: lost rank 100: server 0: it did not answer within 2.0 s");
}

TEST_P(PsLinkLoss, AStoppedWorkerHoldsNobodyUp) {
  start_server(0, 2, [](Links& links, Report& report) { serve(links, report, 2); });
  start_worker(0, 1, [](std::vector<Joined>& joined, Report& report) {
    // Answers to this are more than the connection takes.
    for (int i = 0; i < 20; ++i) {
      joined[0].link->forget(send(*joined[0].link, kEcho, pattern(1 << 20, 1)));
    }
    report.calls = 1;
    ::raise(SIGSTOP);
    stop(*joined[0].link);
  });
  ASSERT_TRUE(holds_within(kPatience, [&] { return worker(0).calls == 0; }));
  start_worker(1, 1, [](std::vector<Joined>& joined, Report& /*report*/) {
    for (int i = 0; i < 100; ++i)
      joined[0].link->wait(send(*joined[0].link, kEcho, pattern(100, 1)));
    stop(*joined[0].link);
  });
  ASSERT_TRUE(workers_.stops(0, kPatience));
  EXPECT_EQ(outcome(worker(1)), "nothing");
  workers_.send(0, SIGCONT);
  EXPECT_EQ(outcome(worker(0)), "nothing");
  EXPECT_EQ(outcome(server(0)), "lost:");
}

TEST_P(PsLinkLoss, TermsThatDifferAreShownOnBothSides) {
  start_server(0, 2, [](Links& /*links*/, Report& /*report*/) {});
  const WorkerBody nothing = [](std::vector<Joined>& /*joined*/, Report& /*report*/) {};
  start_worker(0, 1, nothing);
  start_worker(1, 1, nothing, {"mode: sync", "table item: dim 4", "table user: dim 8"});
  const std::string expected =
      "server 0 and worker 1 were not given the same:\n"
      "  server 0: mode: async\n"
      "  worker 1: mode: sync";
  EXPECT_EQ(outcome(server(0)), expected);
  EXPECT_EQ(outcome(worker(1)), expected);
  EXPECT_EQ(outcome(worker(0)), expected);
}

TEST_P(PsLinkLoss, StrangersAreTurnedAwayAndHoldNobodyUp) {
  start_server(0, 1, [](Links& links, Report& report) { serve(links, report, 1); });
  const mpi::Endpoint& endpoint = board_->endpoints[0];
  std::vector<mpi::Socket> strangers;
  const auto connect = [&] {
    strangers.push_back(mpi::start_connecting(mpi::loopback_address(), endpoint.port));
    const mpi::Socket& socket = strangers.back();
    holds_within(kPatience,
                 [&] { return mpi::connecting_state(socket) != mpi::Connecting::under_way; });
    return socket.get();
  };
  for (int i = 0; i < 100; ++i) connect();  // who say nothing
  for (std::size_t bytes = 1; bytes < 400; bytes += 50) {
    connect();
    mpi::send_all(strangers.back(), pattern(bytes, bytes));
  }
  start_worker(0, 1,
               [](std::vector<Joined>& joined, Report& /*report*/) { stop(*joined[0].link); });
  EXPECT_EQ(outcome(worker(0), kAtOnce), "nothing");
  EXPECT_EQ(outcome(server(0)), "lost:");
}

TEST_P(PsLinkLoss, AServerThatIsLateIsWaitedFor) {
  start_server(
      0, 1, [](Links& links, Report& report) { serve(links, report, 1); }, kTerms, kNever,
      [this] { holds_within(kPatience, [&] { return worker(0).calls == 1; }); });
  start_worker(0, 1,
               [](std::vector<Joined>& joined, Report& /*report*/) { stop(*joined[0].link); });
  std::this_thread::sleep_for(100ms);  // it has called by then, though it need not have
  worker(0).calls = 1;
  EXPECT_EQ(outcome(worker(0)), "nothing");
  EXPECT_EQ(outcome(server(0)), "lost:");
}

TEST_P(PsLinkLoss, MissingServersAreListedAtOneDeadline) {
  start_server(0, 1, [](Links& /*links*/, Report& /*report*/) {});
  for (const std::size_t missing : {1U, 2U}) {  // where nobody listens any more
    board_->endpoints[missing] = listen_as(static_cast<int>(missing)).endpoint;
  }
  start_worker(
      0, 3, [](std::vector<Joined>& /*joined*/, Report& /*report*/) {}, kTerms, 2s);
  const auto address = [&](std::size_t server) {
    return "here:" + std::to_string(board_->endpoints[server].port);
  };
  EXPECT_EQ(outcome(worker(0)), "lost 101 102: lost rank 101, rank 102: server 1 (" + address(1) +
                                    "), server 2 (" + address(2) + "): not ready within 2.0 s");
}

TEST_P(PsLinkLoss, AMissingWorkerIsNamedToThoseThatHaveCome) {
  start_server(
      0, 3, [](Links& /*links*/, Report& /*report*/) {}, kTerms, 2s);
  for (const int number : {0, 2}) {
    start_worker(number, 1, [](std::vector<Joined>& /*joined*/, Report& /*report*/) {});
  }
  const std::string expected =
      "lost 1: lost rank 1: worker 1: not ready within 2.0 s, for server 0 and worker 0, worker 2";
  EXPECT_EQ(outcome(server(0)), expected);
  EXPECT_EQ(outcome(worker(0)), expected);
  EXPECT_EQ(outcome(worker(2)), expected);
}

TEST_P(PsLinkLoss, AWorkerThatDiesInTheMeetingMayComeAgain) {
  start_server(0, 2, [](Links& links, Report& report) { serve(links, report, 2); });
  const WorkerBody leave = [](std::vector<Joined>& joined, Report& /*report*/) {
    stop(*joined[0].link);
  };
  start_worker(0, 1, leave);
  std::this_thread::sleep_for(50ms);  // it is let in, and waits for worker 1
  workers_.send(0, SIGKILL);
  ASSERT_TRUE(workers_.wait(0, kPatience));
  start_worker(0, 1, leave);
  start_worker(1, 1, leave);
  EXPECT_EQ(outcome(worker(0)), "nothing");
  EXPECT_EQ(outcome(worker(1)), "nothing");
  EXPECT_EQ(outcome(server(0)), "lost:");
}

TEST_P(PsLinkLoss, AnInterruptEndsWaits) {
  start_server(0, 1, [](Links& links, Report& report) {
    const InterruptCheck check([] { throw Error("interrupted"); });
    report.end_with(outcome_of([&] {
      while (links.next(kNever)) continue;
    }));
  });
  start_worker(0, 1, [this](std::vector<Joined>& joined, Report& report) {
    outcome(server(0));
    const InterruptCheck check([] { throw Error("interrupted"); });
    report.end_with(outcome_of([&] { joined[0].link->wait(send(*joined[0].link, kEcho, {})); }));
  });
  EXPECT_EQ(outcome(server(0)), "interrupted");
  const std::string text = outcome(worker(0));
  EXPECT_TRUE(text == "interrupted" || text.find("no longer") != std::string::npos) << text;
}

}  // namespace
}  // namespace tutti::ps::test
