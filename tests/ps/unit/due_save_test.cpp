// Checkpoints that servers ask for from time to time: each is seen to once, whatever is
// interrupted.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstring>
#include <memory>
#include <utility>
#include <variant>
#include <vector>

#include "fake_worker.hpp"

namespace tutti::ps::test::due_save_test {
namespace {

/** Says in the reply to an end of a round, if that `tells`, that a checkpoint is due: once. */
class Due {
 public:
  template <class Tells>
  Reply answer(const FakeServer::Got& got, const Tells& tells) {
    Reply reply = answer_to(got);
    if (got.header.kind == RequestKind::end_round && tells(got.header)) {
      const RoundReply round{.save_due = std::exchange(is_due_, false)};
      std::memcpy(reply.payload.data(), &round, sizeof(round));
    }
    return reply;
  }
  Reply answer(const FakeServer::Got& got) {
    return answer(got, [](const RequestHeader&) { return true; });
  }
  bool is_told() const { return !is_due_; }

 private:
  bool is_due_ = true;
};

void expect_written_once(const std::array<FakeServer, 2>& servers) {
  for (const FakeServer& server : servers) EXPECT_EQ(server.count(RequestKind::save), 1);
  EXPECT_EQ(servers[0].count(RequestKind::finish_save), 1);
}

/** A checkpoint that servers ask for is interrupted at requests of a kind, as they are sent or as
 * answers are waited for. */
void expect_written_all_the_same(const Mode& mode, RequestKind kind, bool in_wait) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, mode);
  Due due;
  servers[0].answer = [&](const FakeServer::Got& got) { return due.answer(got); };
  FakeServer& at = servers[kind == RequestKind::save ? 1 : 0];
  at.before_wait = [&] {
    if (in_wait && at.awaited == kind) interrupt();
  };
  at.before_send = [&](const RequestHeader& header) {
    if (!in_wait && header.kind == kind) interrupt();
  };
  const auto train = [&] {
    for (int step = 0; step < 5; ++step) {
      push_some(*worker);
      worker->step();
      worker->flush();
    }
  };
  EXPECT_THROW(train(), Interrupted);
  at.before_wait = go_on;
  at.before_send = [](const RequestHeader&) {};
  worker->stop();
  expect_written_once(servers);
}

TEST(PsDueSave, IsWrittenThoughItIsInterrupted) {
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
TEST(PsDueSave, IsBegunInTheSameRoundOnAllAfterAnInterruptionInSyncMode) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_with(servers, Sync{});
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
  push_some(*worker);
  EXPECT_THROW(worker->step(), Interrupted);
  servers[1].before_send = [](const RequestHeader&) {};
  push_some(*worker);
  const std::vector<FakeServer::Got>& got = servers[1].requests;
  EXPECT_EQ(got.back().header.kind, RequestKind::push_rows);
  EXPECT_EQ(got[got.size() - 2].header.kind, RequestKind::save);
}

/** Servers say it once. The wait for that is interrupted. */
class PsDueSaveUnheard : public ::testing::TestWithParam<Mode> {
 protected:
  PsDueSaveUnheard() {
    const bool waits = std::holds_alternative<Async>(GetParam());
    servers_[0].answer = [this, waits](const FakeServer::Got& got) {
      return due_.answer(got, [waits](const RequestHeader& header) {
        return !waits || (header.flags & kWaitForSlowest) != 0;
      });
    };
    servers_[0].before_wait = [this] {
      if (due_.is_told() && servers_[0].awaited == RequestKind::end_round) interrupt();
    };
    push_some(*worker_);
    EXPECT_THROW(worker_->step(), Interrupted);
    servers_[0].before_wait = go_on;
  }

  std::array<FakeServer, 2> servers_;
  std::unique_ptr<Worker> worker_ = worker_with(servers_, GetParam());
  Due due_;
};

TEST_P(PsDueSaveUnheard, IsBegunByTheNextStep) {
  push_some(*worker_);
  worker_->step();
  for (const FakeServer& server : servers_) EXPECT_EQ(server.count(RequestKind::save), 1);
  worker_->stop();
  expect_written_once(servers_);
}

TEST_P(PsDueSaveUnheard, IsWrittenByAStop) {
  worker_->stop();
  expect_written_once(servers_);
}

INSTANTIATE_TEST_SUITE_P(Modes, PsDueSaveUnheard,
                         ::testing::Values(Mode(Sync{}), Mode(Async{.staleness = 1}),
                                           Mode(Geo{.push_steps = 1})));

TEST(PsDueSave, OfTheLastRoundIsWrittenByAStop) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{}), Mode(Geo{})}) {
    SCOPED_TRACE(mode.index());
    std::array<FakeServer, 2> servers;
    const auto worker = worker_with(servers, mode);
    Due due;
    servers[0].answer = [&](const FakeServer::Got& got) { return due.answer(got); };
    push_some(*worker);
    worker->stop();
    expect_written_once(servers);
  }
}

TEST(PsDueSave, IsWrittenByAStopThatCannotPushTheRest) {
  for (const Mode& mode : {Mode(Async{}), Mode(HalfAsync{})}) {
    SCOPED_TRACE(mode.index());
    std::array<FakeServer, 2> servers;
    const auto worker = worker_with(servers, mode);
    Due due;
    servers[0].answer = [&](const FakeServer::Got& got) { return due.answer(got); };
    servers[1].answer = [](const FakeServer::Got& got) {
      return got.header.kind == RequestKind::end_round ? no_memory() : answer_to(got);
    };
    push_some(*worker);
    EXPECT_THROW(worker->stop(), SystemError);
    expect_written_once(servers);
  }
}

/** Server 0 alone knows when one is due, and says so in a reply. */
TEST(PsDueSave, OfAWorkerThatPushesNothingIsWritten) {
  for (const Mode& mode : {Mode(Async{}), Mode(HalfAsync{.merge_batches = 2})}) {
    SCOPED_TRACE(mode.index());
    std::array<FakeServer, 2> servers;
    const auto worker = worker_with(servers, mode, {}, true);
    Due due;
    servers[0].answer = [&](const FakeServer::Got& got) { return due.answer(got); };
    for (int step = 0; step < 2; ++step) worker->step();
    EXPECT_EQ(servers[1].count(RequestKind::end_round), 0);
    worker->stop();
    expect_written_once(servers);
  }
}

/** A step takes much less time than what is between two looks. */
TEST(PsDueSave, IsLookedAtNowAndThen) {
  for (const Mode& mode : {Mode(Async{}), Mode(HalfAsync{}), Mode(Geo{.push_steps = 1})}) {
    SCOPED_TRACE(mode.index());
    std::array<FakeServer, 2> servers;
    const auto worker = worker_with(servers, mode);
    Due due;
    bool is_written = false;
    servers[0].answer = [&](const FakeServer::Got& got) {
      if (got.header.kind == RequestKind::save && !is_written) return Reply{{Outcome::not_yet}, {}};
      return due.answer(got);
    };
    const auto begin = std::chrono::steady_clock::now();
    for (int step = 0; step < 1000; ++step) {
      push_some(*worker);
      worker->step();
    }
    const auto looks = (std::chrono::steady_clock::now() - begin) / std::chrono::milliseconds(10);
    for (const FakeServer& server : servers) EXPECT_LE(server.count(RequestKind::save), 1 + looks);
    const auto patience = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (servers[0].count(RequestKind::save) < 3) {
      ASSERT_LT(std::chrono::steady_clock::now(), patience) << "it is not looked at again";
      push_some(*worker);
      worker->step();
    }
    is_written = true;
    worker->stop();
    EXPECT_EQ(servers[0].count(RequestKind::finish_save), 1);
  }
}

}  // namespace
}  // namespace tutti::ps::test::due_save_test
