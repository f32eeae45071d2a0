// What servers make of requests in each mode, without workers.
#include "ps/modes/server_mode.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace tutti::ps::test::server_mode_test {
namespace {

const std::vector<std::int64_t> kIds{4, 9};

/** Keeps nothing. */
class NoLinks final : public Links {
 public:
  std::optional<Request> next(std::chrono::nanoseconds, std::unique_lock<std::mutex>&) override {
    return std::nullopt;
  }
  std::optional<Request> poll() override { return std::nullopt; }
  void set_sleeping(bool) override {}
  void answer(const Request&, const ReplyHeader&, std::span<const std::byte>) override {}
  std::vector<LostWorker> lost() override { return {}; }
  void drop(int) override {}
  void wake() override {}
};

/** A table and a dense parameter. */
Stores stores() {
  std::vector<Table> tables;
  tables.emplace_back(
      TableIdentity{
          {.name = "item", .dim = 1, .rule = Sgd{.lr = 1}, .initial = Constant{}}, 1, 0, 1},
      "");
  std::vector<OwnBlock> blocks{
      {{.parameter = 0, .number = 0, .offset = 0, .count = 2, .name = "bias"}, Sgd{.lr = 1}}};
  return {std::move(tables), std::make_unique<DenseStore>(std::move(blocks), "")};
}

TEST(PsGeoServer, ChangedRowsComeAgainUntilTheyHaveCome) {
  Stores own = stores();
  const Members members(2);
  NoLinks links;
  const auto mode = make_server_mode(Geo{}, own, members, links);
  std::vector<std::byte> payload(kIds.size() * (sizeof(std::int64_t) + sizeof(float)));
  std::memcpy(payload.data(), kIds.data(), kIds.size() * sizeof(std::int64_t));
  mode->push({0,
              1,
              {.kind = RequestKind::add_rows,
               .table = 0,
               .count = std::ssize(kIds),
               .payload_bytes = std::ssize(payload)},
              payload});
  const auto pull = [&](std::uint8_t flags) {
    const Answer answer = mode->pull_changed(
        {1, 1, {.kind = RequestKind::pull_changed, .flags = flags, .table = 0, .count = 1}, {}});
    std::int64_t id = -1;
    if (!answer.payload.empty()) std::memcpy(&id, answer.payload.data(), sizeof(id));
    return id;
  };
  EXPECT_EQ(pull(0), kIds[0]);
  EXPECT_EQ(pull(kAgain), kIds[0]);
  EXPECT_EQ(pull(0), kIds[1]);
  EXPECT_EQ(pull(kAgain), kIds[1]);
  EXPECT_EQ(pull(0), -1);
  EXPECT_EQ(pull(kAgain), -1);
}

TEST(PsSyncServer, APushThatItsWorkerSpoilsIsLeftOutOfTheRound) {
  Stores own = stores();
  Members members(1);
  NoLinks links;
  const auto mode = make_server_mode(Sync{}, own, members, links);
  std::vector<std::byte> rows(sizeof(std::int64_t) + sizeof(float));
  const float row = -3;
  std::memcpy(rows.data() + sizeof(std::int64_t), &row, sizeof row);
  mode->push(
      {0,
       1,
       {.kind = RequestKind::push_rows, .table = 0, .count = 1, .payload_bytes = std::ssize(rows)},
       rows});
  std::vector<std::byte> dense(2 * sizeof(float) + sizeof(std::int32_t));
  mode->push({0,
              2,
              {.kind = RequestKind::push_dense, .count = 2, .payload_bytes = std::ssize(dense)},
              dense});
  dense.back() = std::byte{1};  // the number of a block that there is not
  members.set_rounds(0, 1);
  const auto answer =
      mode->end_round({0, 3, {.kind = RequestKind::end_round, .round = 1}, {}}, false);
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->outcome, Outcome::refused);
  EXPECT_EQ(mode->rounds_applied(), 1);
  const std::int64_t id = 0;
  float found = 0;
  own.tables()[0].lookup(std::span(&id, 1), {}, &found);
  EXPECT_EQ(found, -row);
}

}  // namespace
}  // namespace tutti::ps::test::server_mode_test
