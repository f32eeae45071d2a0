// Where memory is short a worker sends a push, or a batch, whole or not at all.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fake_link.hpp"
#include "ps/worker.hpp"

namespace tutti::ps::test::half_push_test {
namespace {

const std::vector<std::int64_t> kIds{1, 2, 3, 4, 5, 6, 7, 8, 9};
const std::vector<float> kRows(kIds.size());

std::unique_ptr<Worker> worker_of(std::span<FakeServer> servers, int tables, const Mode& mode) {
  WorkerParts parts;
  parts.workers = {{0, "worker 0"}};
  parts.mode = mode;
  for (std::size_t i = 0; i < servers.size(); ++i) {
    servers[i].answer = [](const FakeServer::Got& got) {
      Reply reply;
      if (got.header.kind == RequestKind::end_round) reply.payload.resize(sizeof(RoundReply));
      return reply;
    };
    parts.servers.push_back(end_of(servers[i], static_cast<int>(i)));
    parts.servers.back().blocks.push_back(
        {0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) * 2, 2, "bias"});
  }
  parts.dense.push_back({.name = "bias", .shape = {4}, .initial = {}});
  parts.loaded = true;
  for (int table = 0; table < tables; ++table)
    parts.tables.push_back({.name = "table " + std::to_string(table), .dim = 1});
  return make_worker(std::move(parts));
}

TEST(PsWorker, APushThatOneServerHasNoRoomForIsSentToNone) {
  std::array<FakeServer, 2> servers;
  const auto worker = worker_of(servers, 1, Sync{});
  servers[1].drafts_left = 0;
  EXPECT_THROW(worker->push(0, kIds, kRows), SystemError);
  EXPECT_EQ(servers[0].count(RequestKind::push_rows), 0);
  servers[1].drafts_left = 100;
  worker->push(0, kIds, kRows);
  worker->step();
  EXPECT_EQ(servers[0].count(RequestKind::push_rows), 1);
  EXPECT_EQ(servers[1].count(RequestKind::push_rows), 1);
}

TEST(PsWorker, AGradientThatOneServerHasNoRoomForIsSentToNone) {
  for (const Mode& mode : {Mode(Sync{}), Mode(Async{})}) {
    std::array<FakeServer, 2> servers;
    const auto worker = worker_of(servers, 0, mode);
    servers[1].drafts_left = 0;
    EXPECT_THROW(worker->push_dense(0, std::vector<float>(4)), SystemError);
    worker->step();
    EXPECT_EQ(servers[0].count(RequestKind::push_dense), 0);
  }
}

/** A batch of two pushes, of which the second cannot be drafted: `refuse` throws a Failure. */
template <class Failure>
void expect_sent_later_as_a_whole(const std::function<void()>& refuse) {
  for (const Mode& mode : {Mode(Async{}), Mode(HalfAsync{})}) {
    std::array<FakeServer, 1> servers;
    FakeServer& server = servers[0];
    server.refuse_draft = refuse;
    const auto worker = worker_of(servers, 2, mode);
    worker->push(0, kIds, kRows);
    worker->push(1, kIds, kRows);
    server.drafts_left = 1;
    EXPECT_THROW(worker->step(), Failure);
    EXPECT_EQ(server.count(RequestKind::push_rows), 0);
    server.drafts_left = 100;
    worker->flush();
    EXPECT_EQ(server.count(RequestKind::push_rows), 2);
    EXPECT_EQ(server.count(RequestKind::end_round), 1);
  }
}

TEST(PsWorker, ABatchThatThereIsNoRoomForIsSentLaterAsAWhole) {
  expect_sent_later_as_a_whole<SystemError>(FakeServer().refuse_draft);
}

TEST(PsWorker, ABatchWhoseSendingIsInterruptedIsSentLaterAsAWhole) {
  expect_sent_later_as_a_whole<Interrupted>([] { throw Interrupted(); });
}

TEST(PsWorker, NothingIsSentTwiceOfABatchThatIsInterruptedInTheMiddle) {
  for (const RequestKind last : {RequestKind::push_rows, RequestKind::end_round}) {
    std::array<FakeServer, 1> servers;
    FakeServer& server = servers[0];
    const auto worker = worker_of(servers, 2, Async{});
    worker->push(0, kIds, kRows);
    worker->push(1, kIds, kRows);
    server.before_send = [&](const RequestHeader& header) {
      if (header.kind == last && server.count(RequestKind::push_rows) > 0) throw Interrupted();
    };
    EXPECT_THROW(worker->step(), Interrupted);
    const int sent = server.count(RequestKind::push_rows);
    server.before_send = [](const RequestHeader&) {};
    worker->flush();
    EXPECT_EQ(server.count(RequestKind::push_rows), sent);
    EXPECT_EQ(server.count(RequestKind::end_round), 1);
  }
}

TEST(PsWorker, ABatchIsSentOnceThereIsRoomForAllOfIt) {
  std::array<FakeServer, 1> servers;
  FakeServer& server = servers[0];
  const auto worker = worker_of(servers, 2, Async{});
  server.is_behind = true;
  worker->push(0, kIds, kRows);
  worker->step();
  worker->push(0, kIds, kRows);
  server.waits = 0;
  server.has_room = [&](std::int64_t requests) {
    EXPECT_EQ(requests, 4);  // two tables, dense parameters, and the end of the round
    return server.waits > 0;
  };
  server.before_send = [&](const RequestHeader&) { EXPECT_EQ(server.waits, 1); };
  worker->step();
  EXPECT_EQ(server.count(RequestKind::push_rows), 2);
}

TEST(PsWorker, BatchesAreMergedWithoutMoreMemoryThanTheyHave) {
  std::array<FakeServer, 1> servers;
  FakeServer& server = servers[0];
  const auto worker = worker_of(servers, 1, Async{});
  server.is_behind = true;
  for (int step = 0; step < 3; ++step) {  // of which the last waits
    worker->push(0, kIds, kRows);
    worker->step();
  }
  worker->push(0, kIds, kRows);
  for (const float value : {1.0F, 10.0F}) {
    server.drafts_left = 1;  // for what is pushed
    worker->push_dense(0, std::vector<float>(4, value));
    worker->step();
  }
  server.drafts_left = 100;
  worker->flush();
  EXPECT_EQ(server.count(RequestKind::push_rows), 3);
  ASSERT_EQ(server.count(RequestKind::push_dense), 1);
  const auto dense = std::ranges::find(server.requests, RequestKind::push_dense,
                                       [](const auto& got) { return got.header.kind; });
  std::array<float, 2> sums{};
  std::memcpy(sums.data(), dense->payload.data(), sizeof sums);
  EXPECT_EQ(sums, (std::array<float, 2>{11, 11}));
  EXPECT_EQ(worker->stats().merged, 2);
}

}  // namespace
}  // namespace tutti::ps::test::half_push_test
