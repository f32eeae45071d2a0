// What a worker is asked for and cannot do is refused by name and value, before anything is sent.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ps/job.hpp"
#include "ps/modes/check.hpp"
#include "ps/terms.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test {
namespace {

using tutti::test::text_of;
using Ids = std::vector<std::int64_t>;
using Floats = std::vector<float>;

TEST(PsWorker, RefusesWhatDoesNotFitByNameAndValue) {
  JobOptions options{.mode = Sync{}};
  options.tables.push_back({.name = "user", .dim = 2});
  options.tables.push_back({.name = "item", .dim = 2, .dict_size = 10, .padding_idx = -1});
  options.dense.push_back({.name = "bias", .shape = {3}, .initial = {}});
  Job job(options);
  job.run([](Worker& worker) {
    const auto refused = [&](const std::function<void()>& call) {
      return text_of<InvalidArgument>(call);
    };
    Floats two(2);
    Floats four(4);
    EXPECT_EQ(worker.table("item"), 1);
    EXPECT_EQ(worker.parameter("bias"), 0);
    EXPECT_EQ(refused([&] { worker.table("itme"); }),
              "there is no table itme; there are user, item");
    EXPECT_EQ(refused([&] { worker.lookup(2, Ids{1}, two); }),
              "lookup: table is 2, but there are 2");
    EXPECT_EQ(refused([&] {
                worker.lookup(1, Ids{1, 10}, four);
              }),
              "lookup: ids[1] is 10, but table item has dict_size 10");
    EXPECT_EQ(refused([&] { worker.push(1, Ids{-2}, two); }),
              "push: ids[0] is -2, but table item has dict_size 10");
    EXPECT_EQ(refused([&] { worker.prefetch(1, Ids{99}); }),
              "prefetch: ids[0] is 99, but table item has dict_size 10");
    EXPECT_EQ(refused([&] {
                worker.lookup(0, Ids{1, 2, 3}, four);
              }),
              "lookup: rows has 4 elements, but 3 rows of table user have 2 each");
    EXPECT_EQ(refused([&] {
                worker.push(0, Ids{1, 2}, four, Floats(3));
              }),
              "push: shows has 3 elements, but there are 2 ids for table user");
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    EXPECT_EQ(refused([&] {
                worker.push(0, Ids{1, 2}, four, Floats{0, kInfinity});
              }),
              "push: shows[1] is inf, not a number that is 0 or more");
    EXPECT_EQ(refused([&] {
                worker.push(0, Ids{1, 2}, four, Floats{0, 1}, Floats{-1, 1});
              }),
              "push: clicks[0] is -1, not a number that is 0 or more");
    EXPECT_EQ(refused([&] { worker.push_dense(0, four); }),
              "push_dense: gradient has 4 elements, but parameter bias has 3");
    EXPECT_EQ(refused([&] { worker.pull_dense(-1, four); }),
              "pull_dense: parameter is -1, but there are 1");
    EXPECT_EQ(refused([&] { worker.save(""); }), "save: folder is empty");
    worker.lookup(1, Ids{-1, 9}, four);
    worker.lookup(1, Ids{}, std::span<float>());
    worker.stop();
    EXPECT_EQ(worker.stats().pushes, 0);
    EXPECT_EQ(text_of<Error>([&] { worker.step(); }), "this worker has left: stop() was called");
  });
  EXPECT_EQ(job.stats(0).pushes, 0);
}

TEST(PsModes, OptionsThatMakeNoSenseAreRefused) {
  const std::vector<std::pair<Mode, std::string>> wrong{
      {Async{.max_merge_var_num = 0}, "Async: max_merge_var_num is 0, not 1 or more"},
      {Async{.send_queue_size = -1}, "Async: send_queue_size is -1, not 1 or more"},
      {Async{.staleness = 0}, "Async: staleness is 0, not 1 or more"},
      {HalfAsync{.merge_batches = 0}, "HalfAsync: merge_batches is 0, not 1 or more"},
      {Geo{.push_steps = 0}, "Geo: push_steps is 0, not 1 or more"},
  };
  for (const auto& [mode, text] : wrong)
    EXPECT_EQ(text_of<InvalidArgument>([&, mode = mode] { check(mode); }), text);
  check(Mode(Async{.staleness = 1}));
}

TEST(PsModes, GeoRefusesTablesWhoseRowsComeAndGo) {
  FleetOptions options;
  options.tables.push_back({.name = "item", .dim = 1});
  options.mode = Geo{};
  check(options);
  options.tables[0].eviction.max_age = 5;
  EXPECT_EQ(text_of<InvalidArgument>([&] { check(options); }),
            "table 'item': eviction is set, but in Geo mode rows are admitted and kept");
  options.tables[0].entry = AdmitCount{2};
  EXPECT_EQ(text_of<InvalidArgument>([&] { check(options); }),
            "table 'item': entry is set, but in Geo mode rows are admitted and kept");
  options.mode = Async{};
  check(options);
}

}  // namespace
}  // namespace tutti::ps::test
