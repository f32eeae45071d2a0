// What a lookup of 8192 ids costs in C++, for ps_python_call.py to compare: one worker, whose
// server is a thread. For each line "out" or "new" that it reads it makes a run of calls one after
// the other, to memory that it has or to new memory, and prints microseconds a call.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/error.hpp"
#include "tutti/ps/fleet.hpp"

namespace {

constexpr std::int64_t kRows = 1 << 20;
constexpr std::int64_t kDim = 16;
constexpr std::int64_t kBatch = 8192;
constexpr std::int64_t kBatches = kRows / kBatch;
constexpr std::int64_t kStride = 40'503;  // odd, so that a walk visits every row
constexpr std::size_t kRun = 16;

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
  for (std::int64_t batch = 0; batch < kBatches; ++batch) {
    const std::vector<std::int64_t> ids = ids_of(batch);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = -value_of(ids[i / static_cast<std::size_t>(kDim)]);
    }
    worker.push(0, ids, gradients);
    worker.step();
  }
}

/** Throws if a row is wrong. */
void check(std::span<const std::int64_t> ids, std::span<const float> rows) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] != value_of(ids[i / static_cast<std::size_t>(kDim)])) {
      throw tutti::BackendUnavailable("a wrong row");
    }
  }
}

/** Microseconds a call of `look_up`, which returns the rows, over a run; those of the last call are
 * checked. The first call, whose code others may have driven from the caches, does not count. */
template <class LookUp>
double time_run(const std::vector<std::vector<std::int64_t>>& ids, std::size_t run,
                LookUp look_up) {
  using Clock = std::chrono::steady_clock;
  const auto batch = [&](std::size_t call) -> const std::vector<std::int64_t>& {
    return ids[(run * kRun + call) % ids.size()];
  };
  std::span<const float> rows = look_up(batch(0));
  const auto start = Clock::now();
  for (std::size_t call = 1; call < kRun; ++call) rows = look_up(batch(call));
  const std::chrono::duration<double, std::micro> took = Clock::now() - start;
  check(batch(kRun - 1), rows);
  return took.count() / (kRun - 1);
}

void serve(tutti::ps::Worker& worker) {
  constexpr std::size_t kElements = kBatch * kDim;
  std::vector<std::vector<std::int64_t>> ids;
  for (std::int64_t batch = 0; batch < kBatches; ++batch) ids.push_back(ids_of(batch));
  std::vector<float> own(kElements);
  const auto to_own = [&](const std::vector<std::int64_t>& wanted) {
    worker.lookup(0, wanted, own);
    return std::span<const float>(own);
  };
  std::unique_ptr<float[]> last;
  const auto to_new = [&](const std::vector<std::int64_t>& wanted) {
    auto rows = std::make_unique_for_overwrite<float[]>(kElements);
    worker.lookup(0, wanted, {rows.get(), kElements});
    last = std::move(rows);
    return std::span<const float>(last.get(), kElements);
  };
  std::string line;
  for (std::size_t run = 0; std::getline(std::cin, line); ++run) {
    const double took = line == "out" ? time_run(ids, run, to_own) : time_run(ids, run, to_new);
    std::cout << took << std::endl;
  }
}

}  // namespace

int main() {
  try {
    tutti::Communicator world(0, 1, tutti::UniqueId::create());
    tutti::ps::Fleet fleet(tutti::ps::Placement::threads(world), options());
    fill(fleet.worker());
    serve(fleet.worker());
    fleet.worker().stop();
    return 0;
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "ps_call_bench: %s\n", error.what());
    return 1;
  }
}
