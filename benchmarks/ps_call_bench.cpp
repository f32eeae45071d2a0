// What a lookup of 8192 ids costs in C++, for ps_python_call.py to compare: one worker, whose
// server is a thread. Prints the median of `rounds` calls in microseconds: ps_call_bench [ROUNDS].
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "tutti/error.hpp"
#include "tutti/ps/fleet.hpp"

namespace {

constexpr std::int64_t kRows = 1 << 20;
constexpr std::int64_t kDim = 16;
constexpr std::int64_t kBatch = 8192;
constexpr std::int64_t kStride = 40'503;  // odd, so that a walk visits every row

/** All elements of a row. */
float value_of(std::int64_t id) { return static_cast<float>(id % 4096); }

std::vector<std::int64_t> ids_of(std::int64_t batch) {
  std::vector<std::int64_t> ids(kBatch);
  for (std::int64_t i = 0; i < kBatch; ++i) {
    ids[static_cast<std::size_t>(i)] = (batch * kBatch + i) * kStride % kRows;
  }
  return ids;
}

tutti::ps::FleetOptions options() {
  tutti::ps::FleetOptions options;
  tutti::ps::TableSpec table;
  table.name = "rows";
  table.dim = kDim;
  table.rule = tutti::ps::Sgd{1.0F};
  table.initial = tutti::ps::Constant{0.0F};
  options.tables = {table};
  options.mode = tutti::ps::Sync{};
  return options;
}

void fill(tutti::ps::Worker& worker) {
  std::vector<float> gradients(kBatch * kDim);
  for (std::int64_t batch = 0; batch < kRows / kBatch; ++batch) {
    const std::vector<std::int64_t> ids = ids_of(batch);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = -value_of(ids[i / static_cast<std::size_t>(kDim)]);
    }
    worker.push(0, ids, gradients);
    worker.step();
  }
}

/** Seconds of each call; the first tenth warms up. Throws if a row is wrong. */
std::vector<double> time_calls(tutti::ps::Worker& worker, int rounds) {
  using Clock = std::chrono::steady_clock;
  std::vector<float> rows(kBatch * kDim);
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    const std::vector<std::int64_t> ids = ids_of(round);
    const auto start = Clock::now();
    worker.lookup(0, ids, rows);
    const std::chrono::duration<double> took = Clock::now() - start;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] != value_of(ids[i / static_cast<std::size_t>(kDim)])) {
        throw tutti::BackendUnavailable("a wrong row");
      }
    }
    if (round >= rounds / 10) seconds.push_back(took.count());
  }
  return seconds;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 2000;
    tutti::Communicator world(0, 1, tutti::UniqueId::create());
    tutti::ps::Fleet fleet(tutti::ps::Placement::threads(world), options());
    fill(fleet.worker());
    std::vector<double> seconds = time_calls(fleet.worker(), rounds);
    const auto median = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
    std::nth_element(seconds.begin(), median, seconds.end());
    std::printf("%.3f\n", *median * 1e6);
    fleet.worker().stop();
    return 0;
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "ps_call_bench: %s\n", error.what());
    return 1;
  }
}
