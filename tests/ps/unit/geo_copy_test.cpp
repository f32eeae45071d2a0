// GEO mode where memory is short: neither progress nor what others have changed is lost.
#include "ps/modes/geo_copy.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "fake_link.hpp"

namespace tutti::ps::test::geo_copy_test {
namespace {

const std::vector<std::int64_t> kIds{0, 1};

/** There is memory for two rows. */
std::vector<TableSpec> tables() {
  return {{.name = "item",
           .dim = 1,
           .rule = Sgd{.lr = 1},
           .initial = Constant{},
           .dict_size = std::ssize(kIds)}};
}

Reply changed_rows(const std::vector<std::int64_t>& ids, const std::vector<float>& rows) {
  Reply reply;
  const std::size_t id_bytes = ids.size() * sizeof(std::int64_t);
  reply.payload.resize(id_bytes + rows.size() * sizeof(float));
  std::memcpy(reply.payload.data(), ids.data(), id_bytes);
  std::memcpy(reply.payload.data() + id_bytes, rows.data(), rows.size() * sizeof(float));
  return reply;
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
  void finish(std::int64_t round) {
    FirstError errors;
    copy_.finish(round, errors);
    errors.throw_kept();
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
  finish(5);
  ASSERT_EQ(server_.requests.size(), 3U);
  EXPECT_EQ(rows_in(server_.requests[2]), (std::vector<float>{4, 4}));
}

TEST_F(PsGeoCopy, RowsOfWhichNothingIsLeftAreNotSentAtTheEnd) {
  train(8);
  copy_.send_progress(1, 1);
  copy_.confirm_progress();
  finish(2);
  EXPECT_EQ(server_.requests.size(), 1U);
}

TEST_F(PsGeoCopy, TheRestIsSentThoughProgressWasRefused) {
  train(8);
  server_.answer = [](const FakeServer::Got&) { return no_memory(); };
  copy_.send_progress(2, 1);
  server_.answer = [](const FakeServer::Got&) { return Reply{}; };
  EXPECT_THROW(finish(2), SystemError);
  ASSERT_EQ(server_.requests.size(), 2U);
  EXPECT_EQ(rows_in(server_.requests[1]), (std::vector<float>{8, 8}));
}

TEST_F(PsGeoCopy, TheRestOfACopyThatGoesOnIsSentOnceUnlessItIsRefused) {
  train(8);
  copy_.send_progress(2, 1);
  copy_.confirm_progress();
  server_.answer = [](const FakeServer::Got&) { return no_memory(); };
  copy_.send_rest(2);
  EXPECT_THROW(copy_.confirm_progress(), SystemError);
  server_.answer = [](const FakeServer::Got&) { return Reply{}; };
  copy_.send_rest(3);
  copy_.confirm_progress();
  ASSERT_EQ(server_.requests.size(), 3U);
  EXPECT_EQ(rows_in(server_.requests[1]), (std::vector<float>{4, 4}));
  EXPECT_EQ(rows_in(server_.requests[2]), (std::vector<float>{4, 4}));
  copy_.send_progress(2, 4);  // nothing is new
  copy_.send_rest(5);
  EXPECT_EQ(server_.requests.size(), 3U);
}

TEST_F(PsGeoCopy, ProgressWhoseSendingIsInterruptedIsSentLater) {
  train(8);
  server_.before_send = [](const RequestHeader&) { throw Interrupted(); };
  EXPECT_THROW(copy_.send_progress(2, 1), Interrupted);
  server_.before_send = [](const RequestHeader&) {};
  copy_.send_progress(2, 2);
  ASSERT_EQ(server_.requests.size(), 1U);
  EXPECT_EQ(rows_in(server_.requests[0]), (std::vector<float>{4, 4}));
}

TEST_F(PsGeoCopy, WhetherProgressWasRefusedIsHeardAfterAnInterruptedWait) {
  train(8);
  server_.answer = [](const FakeServer::Got&) { return no_memory(); };
  copy_.send_progress(2, 1);
  server_.before_wait = [] { throw Interrupted(); };
  EXPECT_THROW(copy_.confirm_progress(), Interrupted);
  server_.before_wait = [] {};
  EXPECT_THROW(copy_.confirm_progress(), SystemError);
  server_.answer = [](const FakeServer::Got&) { return Reply{}; };
  copy_.send_progress(2, 2);
  ASSERT_EQ(server_.requests.size(), 2U);
  EXPECT_EQ(rows_in(server_.requests[1]), (std::vector<float>{4, 4}));
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

TEST_F(PsGeoCopy, ChangedRowsThatThereIsNoRoomForComeAgainAndAreNobodysProgress) {
  train(8);
  std::vector<int> flags;
  server_.answer = [&](const FakeServer::Got& got) {
    flags.push_back(got.header.flags);
    return changed_rows({kIds[0], 2}, {100, 100});
  };
  EXPECT_THROW(copy_.receive(), SystemError);
  EXPECT_THROW(copy_.receive(), SystemError);
  EXPECT_EQ(flags, (std::vector<int>{0, kAgain}));
  server_.answer = [](const FakeServer::Got&) { return Reply{}; };
  finish(1);
  EXPECT_EQ(rows_in(server_.requests.back()), (std::vector<float>{8, 8}));
}

}  // namespace
}  // namespace tutti::ps::test::geo_copy_test
