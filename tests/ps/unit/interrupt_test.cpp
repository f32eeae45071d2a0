// A caught interruption of a worker: nothing is lost, or told twice.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "fake_worker.hpp"

namespace tutti::ps::test::interrupt_test {
namespace {

TEST(PsInterrupt, AtOneServerKeepsTheBatchOfTheOthers) {
  for (const Mode& mode : {Mode(Async{}), Mode(HalfAsync{})}) {
    std::array<FakeServer, 3> servers;
    const auto worker = worker_with(servers, mode);
    push_some(*worker);
    servers[1].drafts_left = 0;
    servers[1].refuse_draft = interrupt;
    EXPECT_THROW(worker->step(), Interrupted);
    servers[1].drafts_left = 100;
    worker->flush();
    for (const FakeServer& server : servers) {
      EXPECT_EQ(server.count(RequestKind::push_rows), 1);
      EXPECT_EQ(server.count(RequestKind::end_round), 1);
    }
  }
}

/** It is more than an error of another server. */
TEST(PsInterrupt, IsWhatIsThrown) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Async{});
  push_some(*worker);
  for (FakeServer& server : servers) server.drafts_left = 0;
  servers[1].refuse_draft = interrupt;
  EXPECT_THROW(worker->step(), Interrupted);
}

TEST(PsInterrupt, OfAFlushForgetsNoAnswer) {
  std::array<FakeServer, 1> servers;
  FakeServer& server = servers[0];
  const auto worker = worker_with(servers, Async{});
  server.answer = [](const FakeServer::Got& got) {
    return got.header.kind == RequestKind::end_round ? no_memory() : Reply{};
  };
  server.is_behind = true;
  push_some(*worker);
  worker->step();
  server.waits = 0;
  server.before_wait = interrupt;
  EXPECT_THROW(worker->flush(), Interrupted);
  server.before_wait = go_on;
  EXPECT_THROW(worker->flush(), SystemError);
  worker->flush();
  EXPECT_EQ(server.waits, 2);
}

/** Which is known when another server is waited for. */
TEST(PsInterrupt, OfAFlushForgetsNoRefusal) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Async{});
  servers[0].answer = [](const FakeServer::Got& got) {
    return got.header.kind == RequestKind::end_round ? no_memory() : answer_to(got);
  };
  for (FakeServer& server : servers) server.is_behind = true;
  push_some(*worker);
  worker->step();
  servers[1].before_wait = interrupt;
  EXPECT_THROW(worker->flush(), Interrupted);
  servers[1].before_wait = go_on;
  EXPECT_THROW(worker->flush(), SystemError);
  worker->flush();
}

TEST(PsInterrupt, OfTheEndOfAnEmptyBatchKeepsIt) {
  std::array<FakeServer, 1> servers;
  FakeServer& server = servers[0];
  const auto worker = worker_with(servers, Async{.staleness = 100});
  server.is_behind = true;
  push_some(*worker);
  worker->step();
  server.has_room = [](std::int64_t) { return false; };
  server.before_wait = interrupt;
  EXPECT_THROW(worker->step(), Interrupted);
  server.has_room = [](std::int64_t) { return true; };
  server.before_wait = go_on;
  worker->flush();
  ASSERT_EQ(server.count(RequestKind::end_round), 2);
  EXPECT_EQ(server.requests.back().header.round, 2);
}

TEST(PsInterrupt, OfAStopLeavesWhatWaitsToTheNext) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Async{});
  for (FakeServer& server : servers) server.is_behind = true;
  for (int step = 0; step < 3; ++step) {  // the last waits
    push_some(*worker);
    worker->step();
  }
  servers[0].before_wait = interrupt;
  EXPECT_THROW(worker->stop(), Interrupted);
  servers[0].before_wait = go_on;
  worker->stop();
  for (const FakeServer& server : servers) {
    EXPECT_EQ(server.count(RequestKind::push_rows), 3);
    EXPECT_EQ(server.count(RequestKind::stop), 1);
  }
  EXPECT_THROW(worker->stop(), Error);
}

TEST(PsInterrupt, OfAStopInGeoModeSendsNothingTwice) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Geo{});
  push_some(*worker);
  servers[1].before_send = [](const RequestHeader& header) {
    if (header.kind == RequestKind::add_rows) interrupt();
  };
  EXPECT_THROW(worker->stop(), Interrupted);
  servers[1].before_send = [](const RequestHeader&) {};
  worker->stop();
  for (const FakeServer& server : servers) {
    EXPECT_EQ(server.count(RequestKind::add_rows), 1);
    EXPECT_EQ(server.count(RequestKind::stop), 1);
  }
}

/** And what was refused before is told. */
TEST(PsInterrupt, OfLeavingTellsEachServerOnce) {
  for (const Mode& mode : {Mode(Async{}), Mode(Sync{})}) {
    std::array<FakeServer, 2> servers;
    const auto worker = worker_with(servers, mode);
    servers[0].answer = [](const FakeServer::Got& got) {
      return got.header.kind == RequestKind::end_round ? no_memory() : answer_to(got);
    };
    push_some(*worker);
    servers[0].before_wait = [&] {
      if (servers[0].requests.back().header.kind == RequestKind::stop) interrupt();
    };
    EXPECT_THROW(worker->stop(), Interrupted);
    EXPECT_THROW(push_some(*worker), Error);
    EXPECT_FALSE(worker->has_stopped());
    servers[0].before_wait = go_on;
    EXPECT_THROW(worker->stop(), SystemError);
    EXPECT_TRUE(worker->has_stopped());
    for (const FakeServer& server : servers) EXPECT_EQ(server.count(RequestKind::stop), 1);
  }
}

/** All has been pushed by then. */
TEST(PsInterrupt, OfLeavingLeavesNothingButAStop) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Async{});
  push_some(*worker);
  servers[0].before_wait = [&] {
    if (servers[0].requests.back().header.kind == RequestKind::stop) interrupt();
  };
  EXPECT_THROW(worker->stop(), Interrupted);
  servers[0].before_wait = go_on;
  const auto expect_refused = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(), "this worker is leaving: stop() is to be called again");
    }
  };
  std::vector<float> rows(kSomeIds.size());
  expect_refused([&] { worker->lookup(0, kSomeIds, rows); });
  expect_refused([&] { worker->step(); });
  expect_refused([&] { worker->flush(); });
  expect_refused([&] { worker->barrier(); });
  worker->stop();
  EXPECT_TRUE(worker->has_stopped());
}

TEST(PsWorker, AStopByAnotherThreadReturnsWhileOneIsUnderWay) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Async{});
  int others = 0;
  servers[0].before_wait = [&] {
    std::thread([&] { EXPECT_NO_THROW(worker->stop()); }).join();
    EXPECT_FALSE(worker->has_stopped());
    ++others;
  };
  worker->stop();
  EXPECT_GE(others, 1);
  for (const FakeServer& server : servers) EXPECT_EQ(server.count(RequestKind::stop), 1);
  EXPECT_THROW(worker->stop(), Error);
}

TEST(PsInterrupt, OfTheWaitForTheLastRoundForgetsNoAnswer) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Sync{});
  servers[0].answer = [](const FakeServer::Got& got) {
    return got.header.kind == RequestKind::end_round ? no_memory() : answer_to(got);
  };
  push_some(*worker);
  servers[0].before_wait = interrupt;
  EXPECT_THROW(worker->stop(), Interrupted);
  servers[0].before_wait = go_on;
  EXPECT_THROW(worker->stop(), SystemError);
  for (const FakeServer& server : servers) EXPECT_EQ(server.count(RequestKind::end_round), 1);
}

/** Rows are asked for when a round has ended; what it has come to is told all the same. */
TEST(PsInterrupt, OfAPrefetchAfterARoundForgetsNoAnswer) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Sync{});
  servers[0].answer = [](const FakeServer::Got& got) {
    return got.header.kind == RequestKind::end_round ? no_memory() : answer_to(got);
  };
  worker->prefetch(0, kSomeIds);
  push_some(*worker);
  servers[1].before_send = [](const RequestHeader& header) {
    if (header.kind == RequestKind::look_up) interrupt();
  };
  EXPECT_THROW(worker->step(), Interrupted);
  servers[1].before_send = [](const RequestHeader&) {};
  servers[0].answer = answer_to;
  EXPECT_THROW(worker->step(), SystemError);
  worker->step();
}

TEST(PsWorker, ARoundIsHeardThoughThereIsNoMemoryForAPrefetchAfterIt) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Sync{});
  worker->prefetch(0, kSomeIds);
  for (FakeServer& server : servers) server.drafts_left = server.waits = 0;
  EXPECT_THROW(worker->step(), SystemError);
  for (const FakeServer& server : servers) EXPECT_EQ(server.waits, 1);
  worker->step();
}

/** A step in sync mode that has been interrupted between servers. */
class PsInterruptedRound : public ::testing::TestWithParam<bool> {
 protected:
  PsInterruptedRound() {
    push_some(*worker_);
    worker_->push_dense(0, std::vector<float>(12, 1.0F));
    if (GetParam()) {  // in the sums
      servers_[1].has_room = [](std::int64_t) { return false; };
      servers_[1].before_wait = interrupt;
    } else {
      servers_[1].before_send = [](const RequestHeader& header) {
        if (header.kind == RequestKind::end_round) interrupt();
      };
    }
    EXPECT_THROW(worker_->step(), Interrupted);
    servers_[1].has_room = [](std::int64_t) { return true; };
    servers_[1].before_wait = go_on;
    servers_[1].before_send = [](const RequestHeader&) {};
  }
  /** What all servers have got by then. */
  void expect_ended(int rounds, int stops) const {
    for (const FakeServer& server : servers_) {
      EXPECT_EQ(server.count(RequestKind::push_dense), 1);
      EXPECT_EQ(server.count(RequestKind::end_round), rounds);
      EXPECT_EQ(server.count(RequestKind::stop), stops);
    }
  }

  std::array<FakeServer, 3> servers_;
  std::unique_ptr<Worker> worker_ = worker_with(
      servers_, Sync{}, {{.name = "weight", .shape = {12}, .rule = Sgd{}, .initial = {}}});
};

TEST_P(PsInterruptedRound, IsEndedByAStop) {
  worker_->stop();
  expect_ended(1, 1);
}

TEST_P(PsInterruptedRound, IsEndedByAFlush) {
  worker_->flush();
  expect_ended(1, 0);
}

TEST_P(PsInterruptedRound, IsEndedByTheNextStep) {
  worker_->step();
  expect_ended(2, 0);
  for (const FakeServer& server : servers_) EXPECT_EQ(server.requests.back().header.round, 2);
}

TEST_P(PsInterruptedRound, IsEndedBeforeTheNextPush) {
  push_some(*worker_);
  expect_ended(1, 0);
  for (const FakeServer& server : servers_) {
    EXPECT_EQ(server.requests.back().header.kind, RequestKind::push_rows);
    EXPECT_EQ(server.requests.back().header.round, 1);
  }
}

/** Others that come to a barrier wait for no second one. */
TEST(PsInterrupt, OfABarrierEntersItOnce) {
  std::array<FakeServer, 1> servers;
  const auto worker = worker_with(servers, Async{});
  const int before = servers[0].count(RequestKind::barrier);
  servers[0].before_wait = interrupt;
  EXPECT_THROW(worker->barrier(), Interrupted);
  EXPECT_THROW(worker->barrier(), Interrupted);
  servers[0].before_wait = go_on;
  worker->barrier();
  EXPECT_EQ(servers[0].count(RequestKind::barrier), before + 1);
  worker->barrier();
  EXPECT_EQ(servers[0].count(RequestKind::barrier), before + 2);
}

/** A server that refuses a barrier has left it, too. */
TEST(PsInterrupt, OfABarrierThatIsRefusedThenEntersAnother) {
  for (const Outcome outcome : {Outcome::mismatch, Outcome::too_late, Outcome::not_yet}) {
    std::array<FakeServer, 1> servers;
    const auto worker = worker_with(servers, Async{});
    const int before = servers[0].count(RequestKind::barrier);
    servers[0].answer = [&](const FakeServer::Got&) { return Reply{{outcome}, {}}; };
    servers[0].before_wait = interrupt;
    EXPECT_THROW(worker->barrier(), Interrupted);
    servers[0].before_wait = go_on;
    servers[0].answer = answer_to;
    worker->barrier();
    EXPECT_EQ(servers[0].count(RequestKind::barrier), before + 2);
  }
}

/** The refusal is of the call that waits when it comes. */
TEST(PsInterrupt, OfABarrierThatIsRefusedLaterIsTold) {
  std::array<FakeServer, 1> servers;
  const auto worker = worker_with(servers, Async{});
  servers[0].answer = [](const FakeServer::Got&) { return Reply{{Outcome::mismatch}, {}}; };
  servers[0].is_behind = true;
  servers[0].before_wait = interrupt;
  EXPECT_THROW(worker->barrier(), Interrupted);
  servers[0].before_wait = go_on;
  EXPECT_THROW(worker->barrier(), MismatchError);
}

INSTANTIATE_TEST_SUITE_P(InTheSumsAndAtTheEnd, PsInterruptedRound, ::testing::Bool());

/** Whose look-up sends what waits. */
class PsInterruptedReader : public ::testing::Test {
 protected:
  FakeServer& server() { return servers_[0]; }
  /** The server has caught up then. */
  void push_three_of_which_one_waits() {
    server().is_behind = true;
    for (int step = 0; step < 3; ++step) {
      push_some(*worker_);
      worker_->step();
    }
    server().is_behind = false;
  }
  void look_up() {
    std::vector<float> rows(kSomeIds.size());
    worker_->lookup(0, kSomeIds, rows);
  }

  std::array<FakeServer, 1> servers_;
  std::unique_ptr<Worker> worker_ = worker_with(servers_, Async{});
};

TEST_F(PsInterruptedReader, LosesNothingThatWaits) {
  push_three_of_which_one_waits();
  server().drafts_left = 0;
  server().refuse_draft = interrupt;
  EXPECT_THROW(look_up(), Interrupted);
  server().drafts_left = 100;
  look_up();
  EXPECT_EQ(server().count(RequestKind::push_rows), 3);
  EXPECT_EQ(server().count(RequestKind::end_round), 3);
}

TEST_F(PsInterruptedReader, LeavesErrorsToTheNextThatPushes) {
  server().answer = [](const FakeServer::Got& got) {
    return got.header.kind == RequestKind::end_round ? no_memory() : answer_to(got);
  };
  push_three_of_which_one_waits();
  look_up();
  EXPECT_THROW(worker_->flush(), SystemError);
  EXPECT_EQ(server().count(RequestKind::push_rows), 3);
  worker_->flush();
}

}  // namespace
}  // namespace tutti::ps::test::interrupt_test
