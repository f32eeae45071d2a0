// Checkpoints of a parameter server: what is saved comes back, on any number of servers.
#include "ps/files/checkpoint.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ps/files/manifest.hpp"
#include "stored_job.hpp"
#include "support/folder.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/checkpoint.hpp"

namespace tutti::ps::checkpoint_test {
namespace {

namespace fs = std::filesystem;

std::vector<std::int64_t> ids_from(std::int64_t first, std::int64_t count) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < count; ++i) ids.push_back((first + i) * 3);
  return ids;
}

std::vector<TableSpec> specs() {
  std::vector<TableSpec> all{
      {.name = "item", .dim = 5, .rule = Adam{}, .initial = Normal{}, .eviction = {.max_age = 100}},
      {.name = "user", .dim = 3, .rule = Adagrad{.row_wise = true}, .entry = AdmitShowClick{}},
      {.name = "word", .dim = 2, .rule = Sgd{}, .initial = Constant{1}, .split = Split::mod},
      {.name = "none", .dim = 1, .rule = Momentum{}}};
  // All servers of several jobs lie in this process: there are not addresses under ThreadSanitizer
  // for as many rows as the machine has memory for.
  for (TableSpec& spec : all) spec.dict_size = 100'000;
  return all;
}

const std::vector<DenseParameter>& dense() {
  static const std::vector<DenseParameter> all{
      {.name = "weight", .shape = {7, 3}, .rule = Adam{}, .initial = std::vector<float>(21, 0.5F)},
      {.name = "bias", .shape = {5}, .rule = Momentum{}, .initial = std::vector<float>(5, 1.0F)},
      {.name = "scale", .shape = {9}, .rule = Adagrad{}, .initial = std::vector<float>(9, 2.0F)}};
  return all;
}

/** Some batches of training. */
void train(StoredJob& job, int first, int last) {
  for (int step = first; step < last; ++step) {
    for (int table = 0; table < 3; ++table) job.push(table, ids_from(std::int64_t{50} * step, 200));
    job.push_dense(step);
  }
}

class Checkpoints : public ::testing::Test {
 protected:
  std::string path() const { return folder_ / "saved"; }

  tutti::test::Folder folder_;
};

void expect_same(StoredJob& one, StoredJob& other) {
  for (int table = 0; table < static_cast<int>(specs().size()); ++table) {
    EXPECT_EQ(one.rows(table), other.rows(table)) << specs()[static_cast<std::size_t>(table)].name;
  }
  EXPECT_EQ(one.dense_values(), other.dense_values());
}

TEST_F(Checkpoints, ComeBackBitForBitOnAnyNumberOfServersAndGoOnThere) {
  for (const auto& [before, after] : {std::pair{2, 3}, {3, 1}, {1, 4}, {2, 2}}) {
    StoredJob job(specs(), dense(), before);
    train(job, 0, 6);
    job.save(path(), "first");
    EXPECT_GT(job.rows(0).size(), 300U);
    EXPECT_GT(job.rows(1).size(), 50U);

    StoredJob other(specs(), dense(), after);
    other.load(path());
    EXPECT_EQ(other.server(0).round, 6);
    expect_same(job, other);
    other.save(path(), "second");
    StoredJob again(specs(), dense(), before);
    again.load(path());
    expect_same(job, again);

    train(job, 6, 9);
    train(again, 6, 9);
    train(other, 6, 9);
    expect_same(job, again);
    expect_same(job, other);
  }
}

TEST_F(Checkpoints, HoldIdsOfAnyValue) {
  constexpr std::int64_t kFar = std::int64_t{1} << 62U;
  const std::vector<TableSpec> any{{.name = "any", .dim = 1}};
  StoredJob job(any, {}, 2);
  job.push(0, {-kFar, -7, -1, 0, kFar});
  job.save(path(), "a");
  StoredJob other(any, {}, 1);
  other.load(path());
  EXPECT_EQ(other.rows(0).size(), 5U);
  EXPECT_EQ(job.rows(0), other.rows(0));
}

TEST_F(Checkpoints, RowsKeepTheirAge) {
  StoredJob job(specs(), {}, 2);
  job.push(0, {1, 2, 3, 4, 5, 6});
  for (int i = 0; i < 7; ++i) job.server(1).tables[0].step();  // the servers are not in step
  const auto age = [](StoredJob& any, std::int64_t id) {
    const int server = place_of(id, Split::hash, any.count()).server;
    return any.server(server).tables[0].steps() - std::get<2>(any.rows(0).at(id));
  };
  job.save(path(), "a");
  StoredJob other(specs(), {}, 3);
  other.load(path());
  for (std::int64_t id = 1; id <= 6; ++id) EXPECT_EQ(age(other, id), age(job, id)) << id;
}

TEST_F(Checkpoints, GoOnWithWhatEntryRulesHaveCounted) {
  constexpr std::int64_t kIds = 100'000;  // counts of more than a section
  const std::vector<TableSpec> counted{{.name = "item",
                                        .dim = 1,
                                        .entry = AdmitCount{3},
                                        .eviction = {.max_age = 100},
                                        .dict_size = 5 * kIds}};
  for (const auto& [before, after] : {std::pair{1, 3}, {3, 1}}) {
    StoredJob job(counted, {}, before);
    job.push(0, ids_from(0, kIds));
    job.push(0, ids_from(0, kIds / 2));
    job.push(0, ids_from(0, 10));
    EXPECT_EQ(job.rows(0).size(), 10U);
    job.save(path(), "a");
    EXPECT_EQ(inspect_checkpoint(path()).tables[0].bytes,
              std::int64_t{10} * (24 + 4) + (kIds - 10) * 24);
    StoredJob other(counted, {}, after);
    other.load(path());
    EXPECT_EQ(job.rows(0), other.rows(0));
    for (StoredJob* each : {&job, &other}) each->push(0, ids_from(kIds / 2 - 100, kIds));
    EXPECT_EQ(other.rows(0).size(), 110U);
    EXPECT_EQ(job.rows(0), other.rows(0));
  }
}

TEST_F(Checkpoints, AnIdThatGetsItsRowMeanwhileIsCountedNoMore) {
  const std::vector<TableSpec> counted{
      {.name = "item", .dim = 1, .entry = AdmitCount{2}, .dict_size = 1000}};
  StoredJob job(counted, {}, 1);
  job.push(0, {1, 2});
  PartWriter writer(job.server(0).state(), path(), "live", 0, 1);
  EXPECT_TRUE(writer.next());  // the counts
  job.push(0, {1});
  while (writer.next()) {
  }
  publish_checkpoint(path(), "live", 1);
  StoredJob other(counted, {}, 1);
  other.load(path());
  EXPECT_EQ(other.rows(0).size(), 1U);
  EXPECT_EQ(other.server(0).tables[0].count_of_counts(), 1);
}

TEST_F(Checkpoints, ReplaceEachOtherAndLeaveNothingBehind) {
  StoredJob job(specs(), dense(), 2);
  train(job, 0, 1);
  job.save(path(), "one");
  train(job, 1, 2);
  job.save(path(), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(path()), {}), 2);
  StoredJob other(specs(), dense(), 2);
  other.load(path());
  expect_same(job, other);
}

TEST_F(Checkpoints, OneThatIsCutShortLeavesTheOlder) {
  StoredJob job(specs(), dense(), 2);
  train(job, 0, 1);
  job.save(path(), "old");
  StoredJob old(specs(), dense(), 2);
  old.load(path());
  train(job, 1, 2);
  {
    PartWriter first(job.server(0).state(), path(), "new", 0, 2);
    PartWriter second(job.server(1).state(), path(), "new", 1, 2);
    second.next();
    while (first.next()) {
    }
    EXPECT_FALSE(parts_finished(path(), "new", 2));
    EXPECT_THROW(publish_checkpoint(path(), "new", 2), SystemError);
  }
  StoredJob other(specs(), dense(), 2);
  other.load(path());
  expect_same(old, other);
  EXPECT_EQ(std::distance(fs::directory_iterator(path()), {}), 3);
  discard_attempts(path());
  EXPECT_EQ(std::distance(fs::directory_iterator(path()), {}), 2);
  StoredJob again(specs(), dense(), 3);
  again.load(path());
  expect_same(old, again);
  discard_attempts(folder_ / "nowhere");
}

TEST_F(Checkpoints, OneThatNobodyWantsLeavesNoFile) {
  StoredJob job(specs(), dense(), 1);
  {
    PartWriter writer(job.server(0).state(), path(), "new", 0, 1);
    EXPECT_TRUE(writer.next());
    writer.stop();
  }
  EXPECT_TRUE(fs::is_empty(parts_folder(path(), "new")));
}

/** A server may have heard of the last worker's end while another still publishes. */
TEST_F(Checkpoints, TheLastOfAJobStaysWhileAnotherIsPublished) {
  StoredJob job(specs(), dense(), 1);
  job.save(path(), "6-end");
  PartWriter last(job.server(0).state(), path(), "7-end", 0, 1);
  while (last.next()) {
  }
  job.save(path(), "7-worker0-0");
  EXPECT_TRUE(parts_finished(path(), "7-end", 1));
  EXPECT_FALSE(parts_finished(path(), "6-end", 1));
  discard_attempts(path());
  EXPECT_FALSE(parts_finished(path(), "7-end", 1));
}

TEST_F(Checkpoints, WhatAnotherWorkerHasBegunStaysWhileOneIsPublished) {
  StoredJob job(specs(), dense(), 1);
  const auto begin = [&](const char* attempt) {
    PartWriter writer(job.server(0).state(), path(), attempt, 0, 1);
    while (writer.next()) {
    }
  };
  begin("7-worker0-2");
  begin("7-worker1-0");
  begin("6-worker0-0");
  job.save(path(), "7-worker1-1");
  EXPECT_TRUE(parts_finished(path(), "7-worker0-2", 1));
  EXPECT_FALSE(parts_finished(path(), "7-worker1-0", 1));
  EXPECT_FALSE(parts_finished(path(), "6-worker0-0", 1));
  job.save(path(), "7-worker0-3");
  for (const char* const old : {"7-worker1-1", "7-worker0-2"}) {
    EXPECT_FALSE(parts_finished(path(), old, 1)) << old;
  }
}

TEST_F(Checkpoints, AFailedAttemptIsRemovedUnlessItIsTheCheckpoint) {
  StoredJob job(specs(), dense(), 1);
  job.save(path(), "one");
  PartWriter writer(job.server(0).state(), path(), "two", 0, 1);
  while (writer.next()) {
  }
  for (const char* const attempt : {"one", "two"}) discard_attempt(path(), attempt);
  EXPECT_TRUE(parts_finished(path(), "one", 1));
  EXPECT_FALSE(fs::exists(parts_folder(path(), "two")));
}

TEST_F(Checkpoints, NothingIsRemovedWhereTheManifestCannotBeLookedAt) {
  const fs::path parts = parts_folder(path(), "valid");
  fs::create_directories(parts);
  fs::create_symlink("manifest", fs::path(path()) / "manifest");  // to itself
  EXPECT_THROW(discard_attempts(path()), SystemError);
  EXPECT_TRUE(fs::exists(parts));
}

TEST_F(Checkpoints, PartsOfDifferentRoundsAreNone) {
  StoredJob job(specs(), dense(), 2);
  train(job, 0, 1);
  job.save(path(), "old");
  ++job.server(1).round;
  EXPECT_THROW(job.save(path(), "mixed"), InvalidArgument);
  StoredJob other(specs(), dense(), 2);
  other.load(path());
  EXPECT_EQ(other.server(1).round, 1);
}

TEST_F(Checkpoints, PartsAreKnownToBeFinished) {
  StoredJob job(specs(), dense(), 1);
  PartWriter writer(job.server(0).state(), path(), "new", 0, 1);
  EXPECT_TRUE(writer.next());
  EXPECT_FALSE(parts_finished(path(), "new", 1));
  while (writer.next()) {
  }
  EXPECT_FALSE(writer.is_busy());
  EXPECT_TRUE(parts_finished(path(), "new", 1));
  EXPECT_FALSE(parts_finished(path(), "other", 1));
}

TEST_F(Checkpoints, ServersServeInBetween) {
  StoredJob job(specs(), {}, 1);
  train(job, 0, 4);
  PartWriter writer(job.server(0).state(), path(), "live", 0, 1);
  // Rows that come meanwhile may be in it or not; those that are there are whole.
  for (int step = 4; writer.next(); ++step) {
    if (step % 16 == 0) job.push(0, ids_from(step, 40));
  }
  publish_checkpoint(path(), "live", 1);
  StoredJob other(specs(), {}, 1);
  other.load(path());
  EXPECT_GE(other.rows(0).size(), 300U);
  EXPECT_LE(other.rows(0).size(), job.rows(0).size());
}

TEST_F(Checkpoints, TellWhatTheyHold) {
  StoredJob job(specs(), dense(), 2);
  train(job, 0, 3);
  job.save(path(), "a");
  const CheckpointContents contents = inspect_checkpoint(path());
  EXPECT_EQ(contents.servers, 2);
  EXPECT_EQ(contents.round, 3);
  ASSERT_EQ(contents.tables.size(), 4U);
  const CheckpointTable& item = contents.tables[0];
  EXPECT_EQ(item.name, "item");
  EXPECT_EQ(item.rule, "adam: lr 0.001, beta1 0.9, beta2 0.999, eps 1e-08");
  EXPECT_EQ(item.dim, 5);
  EXPECT_EQ(item.rows, std::ssize(job.rows(0)));
  EXPECT_EQ(item.bytes, item.rows * (24 + 4 * (5 + state_floats(Adam{}, 5))));
  EXPECT_EQ(contents.tables[3].rows, 0);
  ASSERT_EQ(contents.dense.size(), 3U);
  for (const CheckpointTable& parameter : contents.dense) {
    EXPECT_EQ(parameter.rows, parameter.name == "weight" ? 21 : parameter.name == "bias" ? 5 : 9);
  }
}

TEST_F(Checkpoints, AServerMayHaveNothing) {
  StoredJob job({}, {}, 2);
  job.save(path(), "a");
  StoredJob other({}, {}, 3);
  other.load(path());
  EXPECT_EQ(inspect_checkpoint(path()).tables.size(), 0U);
}

}  // namespace
}  // namespace tutti::ps::checkpoint_test
