// A caught interruption of a worker: nothing is lost, or told twice.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "fake_link.hpp"
#include "ps/dense/layout.hpp"
#include "ps/worker.hpp"

namespace tutti::ps::test::interrupt_test {
namespace {

const std::vector<std::int64_t> kIds{1, 2, 3, 4, 5, 6, 7, 8, 9};

Reply answer_to(const FakeServer::Got& got) {
  Reply reply;
  if (got.header.kind == RequestKind::end_round) reply.payload.resize(sizeof(RoundReply));
  if (got.header.kind == RequestKind::look_up)
    reply.payload.resize(static_cast<std::size_t>(got.header.count) * sizeof(float));
  return reply;
}

std::unique_ptr<Worker> worker_of(std::span<FakeServer> servers, const Mode& mode,
                                  const std::vector<DenseParameter>& dense = {}) {
  const DenseLayout layout =
      lay_out(dense, static_cast<int>(servers.size()), {.min_block_size = 4});
  WorkerParts parts;
  parts.workers = {{0, "worker 0"}};
  parts.mode = mode;
  for (std::size_t i = 0; i < servers.size(); ++i) {
    servers[i].answer = answer_to;
    parts.servers.push_back(end_of(servers[i], static_cast<int>(i)));
    parts.servers.back().blocks = layout[i];
  }
  parts.dense = dense;
  parts.loaded = true;
  parts.tables.push_back({.name = "item", .dim = 1});
  return make_worker(std::move(parts));
}

void push(Worker& worker) { worker.push(0, kIds, std::vector<float>(kIds.size(), 1.0F)); }

void interrupt() { throw Interrupted(); }
void go_on() {}

TEST(PsInterrupt, AtOneServerKeepsTheBatchOfTheOthers) {
  for (const Mode& mode : {Mode(Async{}), Mode(HalfAsync{})}) {
    std::array<FakeServer, 3> servers;
    const auto worker = worker_of(servers, mode);
    push(*worker);
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
  const auto worker = worker_of(servers, Async{});
  push(*worker);
  for (FakeServer& server : servers) server.drafts_left = 0;
  servers[1].refuse_draft = interrupt;
  EXPECT_THROW(worker->step(), Interrupted);
}

TEST(PsInterrupt, OfAFlushForgetsNoAnswer) {
  std::array<FakeServer, 1> servers;
  FakeServer& server = servers[0];
  const auto worker = worker_of(servers, Async{});
  server.answer = [](const FakeServer::Got& got) {
    return got.header.kind == RequestKind::end_round ? no_memory() : Reply{};
  };
  server.is_behind = true;
  push(*worker);
  worker->step();
  server.waits = 0;
  server.before_wait = interrupt;
  EXPECT_THROW(worker->flush(), Interrupted);
  server.before_wait = go_on;
  EXPECT_THROW(worker->flush(), SystemError);
  worker->flush();
  EXPECT_EQ(server.waits, 2);
}

TEST(PsInterrupt, OfTheEndOfAnEmptyBatchKeepsIt) {
  std::array<FakeServer, 1> servers;
  FakeServer& server = servers[0];
  const auto worker = worker_of(servers, Async{.staleness = 100});
  server.is_behind = true;
  push(*worker);
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
  const auto worker = worker_of(servers, Async{});
  for (FakeServer& server : servers) server.is_behind = true;
  for (int step = 0; step < 3; ++step) {  // the last waits
    push(*worker);
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
  const auto worker = worker_of(servers, Geo{});
  push(*worker);
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
    const auto worker = worker_of(servers, mode);
    servers[0].answer = [](const FakeServer::Got& got) {
      return got.header.kind == RequestKind::end_round ? no_memory() : answer_to(got);
    };
    push(*worker);
    servers[0].before_wait = [&] {
      if (servers[0].requests.back().header.kind == RequestKind::stop) interrupt();
    };
    EXPECT_THROW(worker->stop(), Interrupted);
    EXPECT_THROW(push(*worker), Error);
    servers[0].before_wait = go_on;
    EXPECT_THROW(worker->stop(), SystemError);
    for (const FakeServer& server : servers) EXPECT_EQ(server.count(RequestKind::stop), 1);
  }
}

TEST(PsInterrupt, OfTheWaitForTheLastRoundForgetsNoAnswer) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_of(servers, Sync{});
  servers[0].answer = [](const FakeServer::Got& got) {
    return got.header.kind == RequestKind::end_round ? no_memory() : answer_to(got);
  };
  push(*worker);
  servers[0].before_wait = interrupt;
  EXPECT_THROW(worker->stop(), Interrupted);
  servers[0].before_wait = go_on;
  EXPECT_THROW(worker->stop(), SystemError);
  for (const FakeServer& server : servers) EXPECT_EQ(server.count(RequestKind::end_round), 1);
}

/** A step in sync mode that has been interrupted between servers. */
class PsInterruptedRound : public ::testing::TestWithParam<bool> {
 protected:
  PsInterruptedRound() {
    push(*worker_);
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
  std::unique_ptr<Worker> worker_ = worker_of(
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
  push(*worker_);
  expect_ended(1, 0);
  for (const FakeServer& server : servers_) {
    EXPECT_EQ(server.requests.back().header.kind, RequestKind::push_rows);
    EXPECT_EQ(server.requests.back().header.round, 1);
  }
}

/** Others that come to a barrier wait for no second one. */
TEST(PsInterrupt, OfABarrierEntersItOnce) {
  std::array<FakeServer, 1> servers;
  const auto worker = worker_of(servers, Async{});
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

/** A checkpoint that servers ask for is interrupted at requests of a kind, as they are sent or as
 * answers are waited for. */
void expect_written_all_the_same(const Mode& mode, RequestKind kind, bool in_wait) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_of(servers, mode);
  bool is_due = true;
  servers[0].answer = [&](const FakeServer::Got& got) {
    Reply reply = answer_to(got);
    if (got.header.kind == RequestKind::end_round) {
      const RoundReply round{.save_due = std::exchange(is_due, false)};
      std::memcpy(reply.payload.data(), &round, sizeof(round));
    }
    return reply;
  };
  FakeServer& at = servers[kind == RequestKind::save ? 1 : 0];
  at.before_wait = [&] {
    if (in_wait && at.awaited == kind) interrupt();
  };
  at.before_send = [&](const RequestHeader& header) {
    if (!in_wait && header.kind == kind) interrupt();
  };
  const auto train = [&] {
    for (int step = 0; step < 5; ++step) {
      std::this_thread::sleep_for(std::chrono::milliseconds(11));  // between two looks
      push(*worker);
      worker->step();
      worker->flush();
    }
  };
  EXPECT_THROW(train(), Interrupted);
  at.before_wait = go_on;
  at.before_send = [](const RequestHeader&) {};
  worker->stop();
  for (const FakeServer& server : servers) EXPECT_EQ(server.count(RequestKind::save), 1);
  EXPECT_EQ(servers[0].count(RequestKind::finish_save), 1);
}

TEST(PsInterrupt, OfACheckpointThatIsDueForgetsNothing) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{})}) {
    for (const RequestKind kind : {RequestKind::save, RequestKind::finish_save}) {
      for (const bool in_wait : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << mode.index() << ", " << static_cast<int>(kind) << ", " << in_wait);
        expect_written_all_the_same(mode, kind, in_wait);
      }
    }
  }
}

/** What the others of its servers are told of the next round comes after that. */
TEST(PsInterrupt, OfACheckpointInSyncModeBeginsItInTheSameRoundOnAll) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_of(servers, Sync{});
  servers[0].answer = [](const FakeServer::Got& got) {
    Reply reply = answer_to(got);
    const RoundReply round{.save_due = 1};
    if (got.header.kind == RequestKind::end_round)
      std::memcpy(reply.payload.data(), &round, sizeof(round));
    return reply;
  };
  servers[1].before_send = [](const RequestHeader& header) {
    if (header.kind == RequestKind::save) interrupt();
  };
  push(*worker);
  EXPECT_THROW(worker->step(), Interrupted);
  servers[1].before_send = [](const RequestHeader&) {};
  push(*worker);
  const std::vector<FakeServer::Got>& got = servers[1].requests;
  EXPECT_EQ(got.back().header.kind, RequestKind::push_rows);
  EXPECT_EQ(got[got.size() - 2].header.kind, RequestKind::save);
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
      push(*worker_);
      worker_->step();
    }
    server().is_behind = false;
  }
  void look_up() {
    std::vector<float> rows(kIds.size());
    worker_->lookup(0, kIds, rows);
  }

  std::array<FakeServer, 1> servers_;
  std::unique_ptr<Worker> worker_ = worker_of(servers_, Async{});
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
