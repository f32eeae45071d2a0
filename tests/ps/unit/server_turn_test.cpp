// A worker that does the work of its own process' server.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "fake_link.hpp"
#include "ps/job.hpp"
#include "ps/modes/server_turn.hpp"
#include "ps/modes/worker_mode.hpp"
#include "ps/server.hpp"

namespace tutti::ps::test::server_turn_test {
namespace {

/** Has so many requests. */
class Counted final : public Serving {
 public:
  explicit Counted(int requests) : left(requests) {}
  void stay_awake() override { ++turns; }
  bool serve_next() override {
    if (left == 0) return false;
    --left;
    return true;
  }
  void rest() override { ++rests; }

  int left;
  int turns = 0;
  int rests = 0;
};

TEST(PsServerTurn, ServesUntilDoneAndThenRests) {
  Counted server(5);
  ServerPlace place;
  place.server = &server;
  {
    ServerTurn turn(&place);
    EXPECT_FALSE(place.mutex.try_lock());
    turn.serve_until([&] { return server.left == 2; });
    EXPECT_EQ(server.left, 2);
    EXPECT_EQ(server.rests, 0);
  }
  EXPECT_EQ(server.turns, 1);
  EXPECT_EQ(server.rests, 1);
  EXPECT_TRUE(place.mutex.try_lock());
  place.mutex.unlock();
}

TEST(PsServerTurn, EndsWhenNothingIsAskedForDuringAMoment) {
  Counted server(3);
  ServerPlace place;
  place.server = &server;
  ServerTurn turn(&place);
  turn.serve_until([] { return false; });
  EXPECT_EQ(server.left, 0);
}

TEST(PsServerTurn, ThereIsNoneWithoutAServerAndBesideItsThread) {
  Counted server(3);
  ServerPlace place;
  const auto serve_all = [&](ServerPlace* at) {
    ServerTurn turn(at);
    turn.serve_until([&] { return server.left == 0; });
  };
  serve_all(nullptr);
  serve_all(&place);  // it does not serve
  place.server = &server;
  {
    const std::lock_guard its_thread(place.mutex);
    std::thread([&] { serve_all(&place); }).join();
  }
  EXPECT_EQ(server.left, 3);
  EXPECT_EQ(server.turns, 0);
  serve_all(&place);
  EXPECT_EQ(server.left, 0);
}

/** Servers and workers that share a process, as `servers="thread"` has them: two servers, each of
 * which is the own one of a worker. */
TEST(PsServerTurn, InSyncModeResultsAreThoseOfServersInThreadsOfTheirOwn) {
  constexpr int kSteps = 60;
  JobOptions options{
      .workers = 2,
      .servers = 2,
      .tables = {{.name = "item", .dim = 2, .rule = Sgd{1.0F}, .initial = Constant{0}}},
      .dense = {{.name = "weight",
                 .shape = {40, 2},
                 .rule = Sgd{1.0F},
                 .initial = std::vector<float>(80)}},
      .mode = Sync{}};
  options.workers_serve = true;
  Job job(options);
  job.run([&](Worker& worker) {
    std::vector<float> weight(80);
    std::vector<float> rows(6);
    const std::vector<std::int64_t> ids{1, 2, 3};
    for (int step = 1; step <= kSteps; ++step) {
      worker.push(0, ids, std::vector<float>(6, static_cast<float>(2 * worker.index())));
      worker.push_dense(0, std::vector<float>(80, 2));
      // Who comes later finds the other one asleep, or on its turn.
      if (step % 4 == worker.index()) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      worker.step();
      worker.pull_dense(0, weight);
      worker.lookup(0, ids, rows);
      EXPECT_EQ(weight, std::vector<float>(80, static_cast<float>(-2 * step)));
      EXPECT_EQ(rows, std::vector<float>(6, static_cast<float>(-step)));
    }
    worker.barrier();
    worker.stop();
  });
  EXPECT_EQ(job.stats(0).lost_workers, std::vector<int>{});
}

/** A link takes 1024 requests that are not answered. */
TEST(PsServerTurn, ManyPushesInAStepWaitForNobodyWhoServes) {
  JobOptions options{
      .workers = 1,
      .servers = 1,
      .tables = {{.name = "item", .dim = 1, .rule = Sgd{1.0F}, .initial = Constant{0}}},
      .mode = Sync{}};
  options.workers_serve = true;
  Job job(options);
  job.run([&](Worker& worker) {
    const std::vector<std::int64_t> ids{7};
    for (int step = 0; step < 5; ++step) {
      for (int push = 0; push < 1500; ++push) worker.push(0, ids, std::vector<float>{1});
      worker.step();
    }
    EXPECT_EQ(rows_of(worker, 0, ids, 1), std::vector<float>{-7500});
    worker.stop();
  });
}

Reply end_of_round() {
  const RoundReply round;
  Reply reply;
  reply.payload.resize(sizeof(round));
  std::memcpy(reply.payload.data(), &round, sizeof(round));
  return reply;
}

/** Whose requests take room that had been there when the turn began: who has it must not wait for
 * the server, which nobody else serves meanwhile. */
TEST(PsServerTurn, ThereIsNoneWithoutRoomForRequestsOfOtherThreads) {
  constexpr std::int64_t kOfOthers = 60;
  for (const std::int64_t room : {kOfOthers - 10, std::int64_t{1000}}) {
    Counted own(0);
    ServerPlace place;
    place.server = &own;
    FakeServer server;
    server.is_on_this_host = true;
    std::int64_t left = room;
    server.has_room = [&](std::int64_t requests) {
      const bool has = left >= requests;
      left = std::max<std::int64_t>(left - kOfOthers, 0);
      return has;
    };
    server.answer = [&](const FakeServer::Got&) {
      EXPECT_TRUE(left > 0 || own.turns == own.rests) << "waits for room on its turn";
      return end_of_round();
    };
    std::vector<ServerEnd> ends;
    ends.push_back(end_of(server, 0));
    Servers servers(std::move(ends), {}, {}, {});
    News news(1);
    Saves saves(servers, news);
    const std::unique_ptr<WorkerMode> worker = make_worker_mode(
        {.servers = servers, .news = news, .saves = saves, .server_place = &place}, Sync{});
    worker->step();
    EXPECT_EQ(server.count(RequestKind::end_round), 1);
    EXPECT_EQ(own.turns, room > kOfOthers ? 1 : 0) << room;
  }
}

/** Fails on a worker's turn, and has a request after that. */
class FailingLinks final : public Links {
 public:
  explicit FailingLinks(int& answers) : answers_(answers) {}
  std::optional<Request> next(std::chrono::nanoseconds,
                              std::unique_lock<std::mutex>& lock) override {
    changed_.wait(lock, [&] { return woken_; });
    return barrier();
  }
  std::optional<Request> poll() override {
    if (!std::exchange(failed_, true)) throw std::runtime_error("the links fail");
    return barrier();
  }
  void set_sleeping(bool) override {}
  void answer(const Request&, const ReplyHeader&, std::span<const std::byte>) override {
    ++answers_;
  }
  std::vector<LostWorker> lost() override { return {}; }
  void drop(int) override {}
  void wake() override {  // its caller has the lock
    woken_ = true;
    changed_.notify_all();
  }

 private:
  static Request barrier() { return {0, 1, {.kind = RequestKind::barrier}, {}}; }

  int& answers_;
  std::condition_variable changed_;
  bool woken_ = false;
  bool failed_ = false;
};

TEST(PsServerTurn, AServerThatFailsInItEndsInItsOwnThreadAndAnswersNothingMore) {
  int answers = 0;
  const auto place = std::make_shared<ServerPlace>();
  ServerParts parts;
  parts.workers = worker_names(1);
  parts.links = std::make_unique<FailingLinks>(answers);
  parts.place = place;
  parts.dense = std::make_unique<DenseStore>(std::vector<OwnBlock>{}, "");
  parts.mode = Sync{};
  parts.timeout = std::chrono::seconds(20);
  const std::unique_ptr<Server> server = make_server(std::move(parts));
  std::thread thread([&] { EXPECT_THROW(server->run(), std::runtime_error); });
  const auto serves = [&] {
    const std::lock_guard lock(place->mutex);
    return place->server != nullptr;
  };
  while (!serves()) std::this_thread::yield();
  {
    ServerTurn turn(place.get());
    turn.serve_until([&] { return answers > 0; });
  }
  thread.join();
  EXPECT_EQ(answers, 0);
  EXPECT_EQ(place->server, nullptr);
}

}  // namespace
}  // namespace tutti::ps::test::server_turn_test
