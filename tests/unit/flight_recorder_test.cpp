// The flight recorder: what is in a ring, what it costs nobody to read, and the table of all ranks.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/record/flight.hpp"
#include "comm/record/recorder.hpp"
#include "comm/record/ring.hpp"

namespace tutti::record {
namespace {

Call sum_of(std::int64_t count) {
  const ConstView in(nullptr, count, DType::f32);
  return Call::all_reduce(in, View(nullptr, count, DType::f32), {});
}

Call message_to(int peer) { return Call::send(ConstView(nullptr, 5, DType::u8), peer); }

/** A ring and who writes to it. */
struct Rank {
  CallEntry& begin(const Call& call, std::uint64_t sequence) {
    return recorder.begin(call, sequence, recorder.clock().now());
  }
  void end(CallEntry& entry, CallState state) {
    Recorder::end(entry, state, recorder.clock().now());
  }
  std::vector<NotedCall> calls() const { return read_calls(*ring); }

  std::unique_ptr<Ring> ring = std::make_unique<Ring>();
  Recorder recorder{*ring};
};

TEST(FlightRecorder, KeepsTheLastCallsWithTheirTimes) {
  Rank rank;
  const std::int64_t start = TickClock::monotonic();
  for (std::uint64_t i = 1; i <= 2500; ++i) {
    rank.end(rank.begin(sum_of(static_cast<std::int64_t>(i)), i), CallState::done);
  }
  const std::int64_t end = TickClock::monotonic();

  const std::vector<NotedCall> calls = rank.calls();
  ASSERT_EQ(calls.size(), Ring::kCalls);
  EXPECT_EQ(calls.front().number, 2500 - Ring::kCalls + 1);
  constexpr std::int64_t kSlack =
      100'000;  // two clocks are read, and the thread may be interrupted
  std::int64_t before = start - kSlack;
  for (const NotedCall& call : calls) {
    EXPECT_EQ(call.count, static_cast<std::int64_t>(call.number));
    EXPECT_EQ(call.sequence, call.number);
    EXPECT_EQ(call.state, CallState::done);
    EXPECT_GE(call.begun, before);
    EXPECT_GE(call.ended, call.begun);
    before = call.begun;
  }
  EXPECT_LE(calls.back().ended, end + kSlack);
  EXPECT_EQ(calls.back().describe(), "all_reduce(f32, count 2500, sum)");
}

TEST(FlightRecorder, IsReadWhileItIsWritten) {
  Rank rank;
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      rank.end(rank.begin(sum_of(static_cast<std::int64_t>(3 * i)), i), CallState::done);
    }
  });
  for (int look = 0; look < 200; ++look) {
    for (const NotedCall& call : rank.calls()) {
      ASSERT_EQ(call.count, static_cast<std::int64_t>(3 * call.sequence));
      ASSERT_EQ(call.number, call.sequence);
    }
  }
  stop = true;
  writer.join();
}

TEST(FlightRecorder, SaysWhoHadNotReachedWhichCall) {
  std::vector<Rank> ranks(4);
  Flight flight;
  for (int i = 0; i < 4; ++i) {
    Rank& rank = ranks[static_cast<std::size_t>(i)];
    rank.end(rank.begin(sum_of(10), 1), CallState::done);
    if (i != 2) rank.begin(sum_of(1024), 2);
    if (i == 3) rank.begin(message_to(1), 7);
    flight.ranks.push_back({i, 100 + i, i == 2 ? "its process has ended" : "", rank.calls()});
  }
  flight.reason = "lost rank 2: its process has ended";
  flight.host = "here";
  flight.now = flight.ranks[3].calls.back().begun + 2'000'000'000;

  const std::string table = flight.table();
  EXPECT_EQ(
      table.find("lost rank 2: its process has ended; the last calls of ranks 0 to 3 on here:\n"
                 "  rank 2 had not reached collective 2, all_reduce(f32, count 1024, sum)\n"),
      0U)
      << table;
  EXPECT_NE(table.find("\n  ranks 0, 1, 3  collective 2: all_reduce(f32, count 1024, sum)"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("  in it for 2.0"), std::string::npos) << table;
  EXPECT_NE(table.find("\n  rank 2         collective 1: all_reduce(f32, count 10, sum)"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find(" ago; its process has ended\n"), std::string::npos) << table;
  EXPECT_NE(table.find("\n  rank 3         send 7: send(u8, count 5, to rank 1)"),
            std::string::npos)
      << table;
}

TEST(FlightRecorder, TellsProgramsOfAllCalls) {
  Rank rank;
  rank.end(rank.begin(sum_of(10), 1), CallState::failed);
  Flight flight{.reason = "a \"reason\"\n", .host = "here", .communicator = "", .ranks = {}};
  flight.ranks.push_back({0, 42, "", rank.calls()});
  const std::string json = flight.json();
  EXPECT_NE(json.find(R"("reason": "a \"reason\"\u000a")"), std::string::npos) << json;
  EXPECT_NE(json.find(R"({"rank": 0, "process": 42, "condition": "", "reached": 1, "calls": [)"),
            std::string::npos)
      << json;
  EXPECT_NE(json.find(R"("operation": "all_reduce", "dtype": "f32", "count": 10, )"
                      R"("reduction": "sum", "state": "failed")"),
            std::string::npos)
      << json;
}

}  // namespace
}  // namespace tutti::record
