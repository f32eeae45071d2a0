// How fast a parameter server writes and reads its checkpoints, beside `dd conv=fsync` of the same
// bytes, from the page cache to the same disk, in turns. ps_checkpoint_bench [FOLDER [ROWS
// [ROUNDS]]]: rows of 16 floats with Adagrad's state, as many on one server. Prints each round,
// then medians; what is read comes from the page cache.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include "ps/files/checkpoint.hpp"
#include "ps/files/manifest.hpp"
#include "ps/table/initial.hpp"
#include "ps/table/table.hpp"
#include "support/numbers.hpp"

namespace {

namespace fs = std::filesystem;
namespace ps = tutti::ps;
namespace bench = tutti::bench;

constexpr std::int64_t kDim = 16;

ps::Table empty_table() {
  const ps::TableSpec spec{.name = "item", .dim = kDim, .rule = ps::Adagrad{}};
  return {ps::TableIdentity{.spec = spec, .seed = ps::table_seed(1, spec.name)}, ""};
}

void fill(ps::Table& table, std::int64_t rows) {
  constexpr std::int64_t kBatch = 8192;
  const std::vector<float> gradients(kBatch * kDim, 0.5F);
  std::vector<std::int64_t> ids;
  for (std::int64_t first = 0; first < rows; first += kBatch) {
    ids.clear();
    for (std::int64_t id = first; id < std::min(first + kBatch, rows); ++id) ids.push_back(id);
    table.update({.ids = ids, .values = gradients.data()});
  }
}

template <class Action>
double seconds_of(const Action& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void run(const std::string& command) {
  if (std::system(command.c_str()) == 0) return;
  std::fprintf(stderr, "ps_checkpoint_bench: %s failed\n", command.c_str());
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) try {
  const fs::path folder = fs::path(argc > 1 ? argv[1] : ".") / "ps_checkpoint_bench.tmp";
  const std::int64_t rows = argc > 2 ? bench::count_of("ROWS", argv[2]) : std::int64_t{4} << 20U;
  const int rounds = argc > 3 ? bench::number_of("ROUNDS", argv[3], 1) : 5;
  const std::int64_t bytes = rows * (24 + 8 * kDim);
  ps::Table table = empty_table();
  fill(table, rows);
  const ps::ServerState state{.tables = {&table, 1}};
  const std::string saved = folder / "saved";
  const std::string part = ps::parts_folder(saved, "a") / ps::part_name(0);
  const std::string dd =
      "dd if='" + part + "' of='" + (folder / "dd").string() + "' bs=1M conv=fsync status=none";
  std::printf("%lld rows, %.0f MB; MB/s\n   dd  write   read  longest piece, ms\n",
              static_cast<long long>(rows), static_cast<double>(bytes) * 1e-6);
  std::vector<std::vector<double>> speeds(3);
  for (int round = 0; round < rounds; ++round) {
    fs::remove_all(folder);
    fs::create_directories(folder);
    double longest = 0;  // of those that wait for nothing
    const double write_took = seconds_of([&] {
      ps::PartWriter writer(state, saved, "a", 0, 1);
      bool more = true;
      while (more) {
        const bool waits = writer.is_busy();
        const double took = seconds_of([&] { more = writer.next(); });
        if (!waits) longest = std::max(longest, took);
      }
      ps::publish_checkpoint(saved, "a", 1);
    });
    const double dd_took = seconds_of([&] { run(dd); });
    fs::remove(folder / "dd");
    ps::Table copy = empty_table();
    const double read_took = seconds_of([&] {
      ps::load_checkpoint(saved, {.tables = {&copy, 1}}, 0, 1);
    });
    if (copy.rows() != rows) {
      std::fprintf(stderr, "ps_checkpoint_bench: rows are missing\n");
      return 1;
    }
    const std::vector<double> took{dd_took, write_took, read_took};
    for (std::size_t i = 0; i < took.size(); ++i) {
      speeds[i].push_back(static_cast<double>(bytes) * 1e-6 / took[i]);
    }
    std::printf("%5.0f %6.0f %6.0f %6.1f\n", speeds[0].back(), speeds[1].back(), speeds[2].back(),
                longest * 1e3);
  }
  fs::remove_all(folder);
  std::printf("medians: dd %.0f, write %.0f (%.2f of dd), read %.0f\n", median(speeds[0]),
              median(speeds[1]), median(speeds[1]) / median(speeds[0]), median(speeds[2]));
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ps_checkpoint_bench: %s\n", error.what());
  return 1;
}
