// GEO mode where memory is short: neither progress nor what others have changed is lost.
#include "ps/modes/geo_copy.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "fake_link.hpp"
#include "ps/modes/server_mode.hpp"

namespace tutti::ps::test {
namespace {

const std::vector<std::int64_t> kIds{4, 9};

std::vector<TableSpec> tables() {
  return {{.name = "item", .dim = 1, .rule = Sgd{.lr = 1}, .initial = Constant{}}};
}

std::vector<float> rows_in(const FakeServer::Got& got) {
  std::vector<float> rows(static_cast<std::size_t>(got.header.count));
  std::memcpy(rows.data(), got.payload.data() + rows.size() * sizeof(std::int64_t),
              rows.size() * sizeof(float));
  return rows;
}

class PsGeoCopy : public ::testing::Test {
 protected:
  PsGeoCopy() : servers_(ends(), tables(), {}, {}), copy_(servers_, 0, 1) {}

  void train(float value) {
    Batch batch(servers_, 0);
    const std::vector<float> gradients(kIds.size(), -value);
    batch.add_rows(0, {kIds, gradients.data()}, {kIds, {}});
    copy_.train(batch);
  }

  FakeServer server_;
  Servers servers_;
  GeoCopy copy_;

 private:
  std::vector<ServerEnd> ends() {
    std::vector<ServerEnd> ends;
    ends.push_back(end_of(server_, 0));
    return ends;
  }
};

TEST_F(PsGeoCopy, ProgressThatIsRefusedIsSentAgain) {
  train(8);
  server_.answer = [](const FakeServer::Got&) { return no_memory(); };
  copy_.send_progress(2, 1);
  EXPECT_THROW(copy_.confirm_progress(), SystemError);
  server_.answer = [](const FakeServer::Got&) { return Reply{}; };
  server_.drafts_left = 0;  // nor is there memory to send it
  EXPECT_THROW(copy_.send_progress(2, 2), SystemError);
  server_.drafts_left = 100;
  copy_.send_progress(2, 3);
  copy_.confirm_progress();
  copy_.send_progress(2, 4);  // nothing is new
  ASSERT_EQ(server_.requests.size(), 2U);
  EXPECT_EQ(rows_in(server_.requests[1]), (std::vector<float>{4, 4}));
  copy_.send_rest(5);
  ASSERT_EQ(server_.requests.size(), 3U);
  EXPECT_EQ(rows_in(server_.requests[2]), (std::vector<float>{4, 4}));
}

TEST_F(PsGeoCopy, RowsOfWhichNothingIsLeftAreNotSentAtTheEnd) {
  train(8);
  copy_.send_progress(1, 1);
  copy_.confirm_progress();
  copy_.send_rest(2);
  EXPECT_EQ(server_.requests.size(), 1U);
}

TEST_F(PsGeoCopy, ChangedRowsThatDidNotComeAreAskedForAgain) {
  std::vector<int> flags;
  server_.answer = [&](const FakeServer::Got& got) {
    flags.push_back(got.header.flags);
    return flags.size() == 1 ? no_memory() : Reply{};
  };
  EXPECT_THROW(copy_.receive(), SystemError);
  copy_.receive();
  copy_.receive();
  EXPECT_EQ(flags, (std::vector<int>{0, kAgain, 0}));
}

/** Keeps nothing. */
class NoLinks final : public Links {
 public:
  std::optional<Request> next(std::chrono::nanoseconds) override { return std::nullopt; }
  void answer(const Request&, const ReplyHeader&, std::span<const std::byte>) override {}
  std::vector<LostWorker> lost() override { return {}; }
  void drop(int) override {}
  void wake() override {}
};

TEST(PsGeoServer, ChangedRowsComeAgainUntilTheyHaveCome) {
  std::vector<Table> own;
  own.emplace_back(TableIdentity{tables()[0], 1, 0, 1}, "");
  Stores stores(std::move(own), std::make_unique<DenseStore>(std::vector<OwnBlock>{}, ""));
  const Members members(2);
  NoLinks links;
  const auto mode = make_server_mode(Geo{}, stores, members, links);
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

}  // namespace
}  // namespace tutti::ps::test
