// Checkpoints that are damaged, or of other tables, are refused by name before anything is changed.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "ps/files/checkpoint.hpp"
#include "ps/files/format.hpp"
#include "stored_job.hpp"
#include "support/folder.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/checkpoint.hpp"

namespace tutti::ps::checkpoint_refusal_test {
namespace {

namespace fs = std::filesystem;

const TableSpec& spec() {
  static const TableSpec item{.name = "item", .dim = 4, .rule = Adagrad{}};
  return item;
}

const std::vector<DenseParameter>& dense() {
  static const std::vector<DenseParameter> all{
      {.name = "weight", .shape = {12}, .rule = Adam{}, .initial = std::vector<float>(12, 0.5F)}};
  return all;
}

class CheckpointRefusals : public ::testing::Test {
 protected:
  void SetUp() override {
    StoredJob job({spec()}, dense(), 2);
    job.push(0, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11});
    job.push_dense(1);
    job.save(path(), "a");
  }

  std::string path() const { return folder_ / "saved"; }
  fs::path part(int server) const {
    return folder_ / "saved/a.tuttiparts" / ("server-" + std::to_string(server));
  }

  /** What loading says; nothing may have been changed by it. */
  std::string refusal(StoredJob& job) const {
    std::string text = "nothing was refused";
    const auto dense_before = job.dense_values();
    try {
      load_checkpoint(path(), job.server(0).state(), 0, job.count());
      return text;
    } catch (const InvalidArgument& error) {
      text = error.what();
    }
    for (Table& table : job.server(0).tables) EXPECT_EQ(table.rows(), 0);
    EXPECT_EQ(job.dense_values(), dense_before);
    return text;
  }
  std::string refusal(const TableSpec& table, std::uint64_t seed = 1) const {
    StoredJob job({table}, dense(), 1, seed);
    return refusal(job);
  }

  tutti::test::Folder folder_;
};

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST_F(CheckpointRefusals, BytesThatAreDamagedOrMissing) {
  const std::vector<fs::path> files{part(0), part(1), fs::path(path()) / "manifest"};
  StoredJob job({spec()}, dense(), 1);
  for (const fs::path& file : files) {
    const std::string good = read(file);
    ASSERT_GT(good.size(), 100U);
    const auto expect_refused = [&](const char* what, std::size_t at) {
      const std::string text = refusal(job);
      EXPECT_NE(text.find(file.filename().string()), std::string::npos) << what << at << text;
    };
    const bool is_small = file.filename() == "manifest";  // all of its bytes
    for (std::size_t at = 0; at < good.size(); at += is_small ? 1 : 7) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
      write(file, bad);
      expect_refused("byte ", at);
      EXPECT_THROW(inspect_checkpoint(path()), InvalidArgument);
    }
    for (std::size_t length = 0; length < good.size(); length += is_small ? 1 : 41) {
      write(file, good.substr(0, length));
      expect_refused("length ", length);
    }
    write(file, good + "x");
    expect_refused("longer ", 1);
    write(file, good);
  }
  EXPECT_EQ(refusal(spec()), "nothing was refused");
}

TEST_F(CheckpointRefusals, DamagedCountsOfAnEntryRule) {
  TableSpec counted = spec();
  counted.entry = AdmitCount{2};
  StoredJob job({counted}, dense(), 2);
  std::vector<std::int64_t> ids(10'000);
  std::iota(ids.begin(), ids.end(), 0);
  job.push(0, ids);
  job.save(path(), "a");
  std::string bytes = read(part(1));
  ASSERT_GT(bytes.size(), 100'000U);
  bytes[bytes.size() / 2] ^= 1;
  write(part(1), bytes);
  EXPECT_NE(refusal(counted).find("server-1: is damaged: the checksum"), std::string::npos);
}

TEST_F(CheckpointRefusals, PartsOfEachOther) {
  fs::copy_file(part(1), part(0), fs::copy_options::overwrite_existing);
  EXPECT_NE(refusal(spec()).find("server-0: is damaged"), std::string::npos);
}

TEST_F(CheckpointRefusals, StateThatNoRuleLeaves) {
  for (const float steps : {-1.0F, std::numeric_limits<float>::quiet_NaN(), 0x1p25F}) {
    StoredJob job({{.name = "item", .dim = 1, .rule = Adam{}}}, dense(), 1);
    const float weight = 1.0F;
    const std::vector<float> state{0.0F, 0.0F, steps};
    const StoredRow row{.id = 3,
                        .weights = &weight,
                        .state = state.data(),
                        .last_step = 0,
                        .shows = 0,
                        .clicks = 0};
    job.server(0).tables[0].restore({&row, 1});
    job.save(path(), "steps");
    EXPECT_NE(refusal({.name = "item", .dim = 1, .rule = Adam{}}).find("table 'item' has"),
              std::string::npos);
  }
  StoredJob job({spec()}, dense(), 1);
  DenseStore& store = job.server(0).dense;
  const std::vector<float> values(store.values().begin(),
                                  store.values().begin() + store.blocks()[0].block.count);
  std::vector<float> state(store.state(0).begin(), store.state(0).end());
  state.back() = -1.0F;
  store.restore(0, values, state);
  job.save(path(), "dense_steps");
  EXPECT_NE(refusal(spec()).find("has -1 steps"), std::string::npos);
}

TEST_F(CheckpointRefusals, CountsThatNoRuleLeaves) {
  const TableSpec counted{.name = "item", .dim = 1, .entry = AdmitCount{2}, .dict_size = 10};
  for (const double sum :
       {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    StoredJob job({counted}, {}, 1);
    const StoredCount count{.id = 3, .last_step = 0, .sum = sum};
    job.server(0).tables[0].restore({&count, 1});
    job.save(path(), "sum");
    EXPECT_NE(refusal(counted).find("makes no sense"), std::string::npos);
  }
  TableSpec larger = counted;
  larger.dict_size = 20;
  StoredJob job({larger}, {}, 1);
  job.push(0, {15});
  job.save(path(), "beyond");
  EXPECT_NE(refusal(counted).find("table 'item' has id 15, beyond dict_size 10"),
            std::string::npos);
}

TEST_F(CheckpointRefusals, AnIdThatComesTwice) {
  StoredJob job({{.name = "item", .dim = 1}}, dense(), 1);
  const float weight = 1.0F;
  const StoredRow row{
      .id = 3, .weights = &weight, .state = nullptr, .last_step = 0, .shows = 0, .clicks = 0};
  job.server(0).tables[0].restore(std::vector<StoredRow>{row, row});
  job.save(path(), "twice");
  EXPECT_NE(refusal({.name = "item", .dim = 1}).find("has id 3 out of its place"),
            std::string::npos);
}

TEST_F(CheckpointRefusals, OtherTables) {
  TableSpec other = spec();
  other.name = "items";
  EXPECT_NE(refusal(other).find("has a table 'item' that is not here"), std::string::npos);
  other = spec();
  other.dim = 5;
  EXPECT_NE(refusal(other).find("server-0: table 'item' has dim 4 there, but 5 here"),
            std::string::npos);
  other = spec();
  other.rule = Adagrad{.row_wise = true};
  EXPECT_NE(refusal(other).find("table 'item' has rule adagrad there, but adagrad, row_wise here"),
            std::string::npos);
  other = spec();
  other.initial = Constant{};
  EXPECT_NE(refusal(other).find("table 'item' has initial values uniform: low -0.01, high 0.01 "
                                "there, but constant: value 0 here"),
            std::string::npos);
  other = spec();
  other.dict_size = 11;
  EXPECT_NE(refusal(other).find("table 'item' has id 11, beyond dict_size 11"), std::string::npos);
  EXPECT_NE(refusal(spec(), 2).find("table 'item' was written with another seed"),
            std::string::npos);
  StoredJob more({spec(), {.name = "user", .dim = 1}}, dense(), 1);
  EXPECT_NE(refusal(more).find("has 0 tables 'user', not one"), std::string::npos);
}

TEST_F(CheckpointRefusals, WhatMayBeAnother) {
  TableSpec other = spec();
  other.rule = Adagrad{.lr = 0.5F};
  other.entry = AdmitAll{};
  other.eviction.max_age = 9;
  other.split = Split::mod;
  other.dict_size = 12;
  other.consistent_rows = true;
  EXPECT_EQ(refusal(other), "nothing was refused");
}

TEST_F(CheckpointRefusals, OtherParameters) {
  std::vector<DenseParameter> other = dense();
  other[0].shape = {13};
  other[0].initial.resize(13);
  StoredJob longer({spec()}, other, 1);
  EXPECT_NE(refusal(longer).find("parameter 'weight' has elements 12 there, but 13 here"),
            std::string::npos);
  other = dense();
  other[0].rule = Sgd{};
  StoredJob plain({spec()}, other, 1);
  EXPECT_NE(refusal(plain).find("parameter 'weight' has rule adam there, but sgd here"),
            std::string::npos);
  other = dense();
  other[0].name = "bias";
  StoredJob renamed({spec()}, other, 1);
  EXPECT_NE(refusal(renamed).find("has 0 of 12 elements of block 'bias'"), std::string::npos);
}

TEST_F(CheckpointRefusals, FilesThatAreMissingOrNone) {
  StoredJob job({spec()}, dense(), 1);
  fs::remove(part(1));
  EXPECT_THROW(job.load(path()), SystemError);
  ::mkfifo(part(1).c_str(), 0600);
  EXPECT_NE(refusal(spec()).find("server-1: is not a regular file"), std::string::npos);
  EXPECT_THROW(job.load(folder_ / "nowhere"), SystemError);
}

TEST_F(CheckpointRefusals, AttemptsThatAreNoNames) {
  StoredJob job({spec()}, dense(), 1);
  for (const char* attempt : {"", "../x", "a b", "a/b"}) {
    EXPECT_THROW(job.save(path(), attempt), InvalidArgument) << attempt;
  }
}

TEST_F(CheckpointRefusals, FoldersThatCannotBeWritten) {
  StoredJob job({spec()}, dense(), 1);
  write(folder_ / "file", "x");
  EXPECT_THROW(job.save(folder_ / "file", "a"), SystemError);
  EXPECT_THROW(job.save(folder_ / "file/within", "a"), SystemError);
}

}  // namespace
}  // namespace tutti::ps::checkpoint_refusal_test
