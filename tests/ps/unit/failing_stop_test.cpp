// A stop() that fails: whatever it cannot do, it does all else, and tells the first error at the
// end.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "fake_worker.hpp"

namespace tutti::ps::test::failing_stop_test {
namespace {

bool ends_round(const FakeServer::Got& got) { return got.header.kind == RequestKind::end_round; }

Reply refuse_rounds(const FakeServer::Got& got) {
  return ends_round(got) ? no_memory() : answer_to(got);
}

Reply refused() { return {{Outcome::refused}, {}}; }

class PsFailingStop : public ::testing::Test {
 protected:
  void begin(const Mode& mode) { worker_ = worker_with(servers_, mode); }
  void step() {
    push_some(*worker_);
    worker_->step();
  }

  std::array<FakeServer, 2> servers_;
  std::unique_ptr<Worker> worker_;
};

TEST_F(PsFailingStop, SendsWhatWaitsForOtherServers) {
  begin(Async{});
  servers_[0].answer = refuse_rounds;
  servers_[1].is_behind = true;
  for (int i = 0; i < 3; ++i) EXPECT_THROW(step(), SystemError);  // the last waits
  push_some(*worker_);
  EXPECT_THROW(worker_->stop(), SystemError);
  EXPECT_EQ(servers_[0].count(RequestKind::push_rows), 4);
  EXPECT_EQ(servers_[1].count(RequestKind::push_rows), 3);  // of which one is merged
  for (const FakeServer& server : servers_) EXPECT_EQ(server.count(RequestKind::stop), 1);
}

/** Only the answer of a server that comes after the one that refuses tells of it. */
TEST_F(PsFailingStop, WritesACheckpointThatIsDue) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{}), Mode(Geo{})}) {
    SCOPED_TRACE(mode.index());
    for (FakeServer& server : servers_) server = {};
    begin(mode);
    servers_[0].answer = refuse_rounds;
    servers_[1].is_behind = true;
    servers_[1].answer = [](const FakeServer::Got& got) {
      Reply reply = answer_to(got);
      const RoundReply round{.save_due = 1};
      if (ends_round(got)) std::memcpy(reply.payload.data(), &round, sizeof(round));
      return reply;
    };
    push_some(*worker_);
    EXPECT_THROW(worker_->stop(), SystemError);
    EXPECT_GE(servers_[0].count(RequestKind::finish_save), 1);
  }
}

TEST_F(PsFailingStop, EndsTheRoundThatItIsAtThoughTheOneBeforeWasRefused) {
  begin(Sync{});
  servers_[0].answer = refuse_rounds;
  servers_[0].before_wait = interrupt;
  EXPECT_THROW(step(), Interrupted);
  servers_[0].before_wait = go_on;
  push_some(*worker_);
  servers_[0].answer = answer_to;
  EXPECT_THROW(worker_->stop(), SystemError);
  for (const FakeServer& server : servers_) EXPECT_EQ(server.count(RequestKind::end_round), 2);
}

/** Behind two of which nobody knows what they have come to. */
class PsStopWithoutMemory : public PsFailingStop {
 protected:
  void let_two_wait(const std::function<bool()>& has_memory) {
    begin(Async{.max_merge_var_num = 1});
    servers_[0].is_behind = true;
    for (int i = 0; i < 4; ++i) step();
    servers_[0].drafts_left = 0;
    servers_[0].refuse_draft = [has_memory] {
      if (!has_memory()) throw SystemError("the test has no memory", ENOMEM);
    };
  }
};

TEST_F(PsStopWithoutMemory, TriesAgainWhatThereIsMemoryForLater) {
  let_two_wait([this] { return servers_[0].waits > 1; });
  servers_[0].waits = 0;
  const int before = servers_[0].count(RequestKind::push_rows);
  worker_->stop();
  EXPECT_EQ(before, 2);
  EXPECT_EQ(servers_[0].count(RequestKind::push_rows), 4);
}

TEST_F(PsStopWithoutMemory, DropsNoMoreThanThereIsNoMemoryFor) {
  int tries = 0;
  let_two_wait([&tries] { return ++tries > 3; });
  EXPECT_THROW(worker_->stop(), SystemError);
  EXPECT_EQ(servers_[0].count(RequestKind::push_rows), 3);
  EXPECT_EQ(servers_[0].count(RequestKind::stop), 1);
  EXPECT_EQ(servers_[1].count(RequestKind::push_rows), 4);
}

/** Not that of /dev/shm, but that of the process. */
TEST_F(PsStopWithoutMemory, LeavesWithoutAnyOfItsOwn) {
  let_two_wait([] { return false; });
  servers_[0].refuse_draft = [] { throw std::bad_alloc(); };
  EXPECT_THROW(worker_->stop(), std::bad_alloc);
  EXPECT_TRUE(worker_->has_stopped());
  EXPECT_EQ(servers_[0].count(RequestKind::push_rows), 2);
  EXPECT_EQ(servers_[1].count(RequestKind::push_rows), 4);
  for (const FakeServer& server : servers_) EXPECT_EQ(server.count(RequestKind::stop), 1);
}

TEST_F(PsFailingStop, LeavesTheOthersWithoutMemoryToTellOne) {
  begin(Async{});
  servers_[0].before_send = [](const RequestHeader& header) {
    if (header.kind == RequestKind::stop) throw std::bad_alloc();
  };
  EXPECT_THROW(worker_->stop(), std::bad_alloc);
  EXPECT_TRUE(worker_->has_stopped());
  EXPECT_EQ(servers_[1].count(RequestKind::stop), 1);
}

TEST_F(PsFailingStop, TellsWhatFailedFirst) {
  begin(Async{});
  servers_[0].answer = [](const FakeServer::Got& got) {
    return got.header.kind == RequestKind::stop ? refused() : refuse_rounds(got);
  };
  push_some(*worker_);
  EXPECT_THROW(worker_->stop(), SystemError);
  EXPECT_TRUE(worker_->has_stopped());
}

TEST_F(PsFailingStop, TellsWhatKeepsItFromLeaving) {
  begin(Async{});
  servers_[0].answer = [](const FakeServer::Got& got) {
    return got.header.kind == RequestKind::stop ? refused() : answer_to(got);
  };
  EXPECT_THROW(worker_->stop(), Error);
  EXPECT_TRUE(worker_->has_stopped());
  EXPECT_EQ(servers_[1].waits, 3);  // for the two meetings of its start, and for this
}

/** A part has failed when another is interrupted. */
class PsInterruptedFailingStop : public PsFailingStop, public ::testing::WithParamInterface<Mode> {
 protected:
  PsInterruptedFailingStop() {
    begin(GetParam());
    servers_[0].answer = refuse_rounds;
    push_some(*worker_);
    servers_[1].is_behind = true;
    servers_[1].before_wait = interrupt;
    EXPECT_THROW(worker_->stop(), Interrupted);
    servers_[1].before_wait = go_on;
  }
};

TEST_P(PsInterruptedFailingStop, IsEndedByTheNextWhichTells) {
  EXPECT_FALSE(worker_->has_stopped());
  EXPECT_THROW(worker_->stop(), SystemError);
  EXPECT_TRUE(worker_->has_stopped());
  for (const FakeServer& server : servers_) {
    EXPECT_EQ(server.count(RequestKind::push_rows) + server.count(RequestKind::add_rows), 1);
    EXPECT_EQ(server.count(RequestKind::stop), 1);
  }
}

/** Not in GEO mode, where nothing of the refusal is heard before what was pushed is confirmed, in
 * which the interruption comes; the next exchange or stop() tells of it. */
class PsInterruptedLosingStop : public PsInterruptedFailingStop {};

/** What was pushed before may be lost: nobody trains on without a word of that. */
TEST_P(PsInterruptedLosingStop, LetsNobodyGoOnWithoutAWord) {
  servers_[0].answer = answer_to;
  EXPECT_THROW(step(), Error);
}

TEST_F(PsFailingStop, IsToBeCalledAgainOnceItIsInterrupted) {
  begin(Async{});
  servers_[0].answer = refuse_rounds;
  push_some(*worker_);
  servers_[1].is_behind = true;
  servers_[1].before_wait = interrupt;
  EXPECT_THROW(worker_->stop(), Interrupted);
  const auto expect_refused = [](const auto& call) {
    try {
      call();
      ADD_FAILURE() << "was not refused";
    } catch (const Error& error) {
      EXPECT_STREQ(error.what(),
                   "this worker is leaving: stop() has failed, and is to be called again");
    }
  };
  expect_refused([&] { push_some(*worker_); });
  expect_refused([&] { worker_->step(); });
  expect_refused([&] { worker_->flush(); });
}

INSTANTIATE_TEST_SUITE_P(Modes, PsInterruptedFailingStop,
                         ::testing::Values(Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{}),
                                           Mode(Geo{})));
INSTANTIATE_TEST_SUITE_P(Modes, PsInterruptedLosingStop,
                         ::testing::Values(Mode(Sync{}), Mode(Async{}), Mode(HalfAsync{})));

}  // namespace
}  // namespace tutti::ps::test::failing_stop_test
