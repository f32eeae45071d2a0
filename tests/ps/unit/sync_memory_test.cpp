// A server in sync mode that has no memory for what it is to keep of a round.
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ps/link/links.hpp"
#include "ps/modes/server_mode.hpp"

namespace tutti::ps::test::sync_memory_test {
namespace {

/** Notes what each request was answered. */
class NotedLinks final : public Links {
 public:
  std::optional<Request> next(std::chrono::nanoseconds, std::unique_lock<std::mutex>&) override {
    return std::nullopt;
  }
  std::optional<Request> poll() override { return std::nullopt; }
  void set_sleeping(bool) override {}
  void answer(const Request& request, const ReplyHeader& header,
              std::span<const std::byte>) override {
    answers.emplace_back(request.number, header.outcome);
  }
  std::vector<LostWorker> lost() override { return {}; }
  void drop(int) override {}
  void wake() override {}

  std::vector<std::pair<std::uint64_t, Outcome>> answers;
};

/** A push of so many rows, whose payload nobody reads. */
Request push_of(std::uint64_t number, std::int64_t rows) {
  static constexpr std::byte kNothing{};
  constexpr std::int64_t kRow = sizeof(std::int64_t) + sizeof(float);
  return {0,
          number,
          {.kind = RequestKind::push_rows, .table = 0, .count = rows, .payload_bytes = rows * kRow},
          {&kNothing, static_cast<std::size_t>(rows * kRow)}};
}

TEST(PsSyncServer, APushThatThereIsNoMemoryToKeepIsAnsweredOnce) {
  std::vector<Table> tables;
  tables.emplace_back(TableIdentity{{.name = "item", .dim = 1, .dict_size = 100}, 1, 0, 1}, "");
  Stores stores(std::move(tables), std::make_unique<DenseStore>(std::vector<OwnBlock>(), ""));
  Members members(1);
  NotedLinks links;
  const auto mode = make_server_mode(Sync{}, stores, members, links);
  constexpr std::uint64_t kHuge = 3;
  std::uint64_t sent = 0;
  while (links.answers.empty()) {
    ++sent;
    mode->push(push_of(sent, sent == kHuge ? std::int64_t{1} << 58U : 0));
  }
  std::vector<std::pair<std::uint64_t, Outcome>> expected;
  for (std::uint64_t number = 1; number <= sent; ++number)
    expected.emplace_back(number, number == kHuge ? Outcome::no_memory : Outcome::done);
  EXPECT_EQ(links.answers, expected);
  members.set_rounds(0, 1);
  EXPECT_TRUE(
      mode->end_round({0, sent + 1, {.kind = RequestKind::end_round, .round = 1}, {}}, false));
  EXPECT_EQ(links.answers, expected);
}

}  // namespace
}  // namespace tutti::ps::test::sync_memory_test
