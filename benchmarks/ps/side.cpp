// The rows that all sides move, and how calls are timed.
#include "ps/side.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <numeric>
#include <random>

#include "ps/table/place.hpp"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<std::string_view, 10> kTasks{
    "lookup",        "push_sgd",       "push_adagrad",   "push_adam", "dense_push_4M",
    "dense_pull_4M", "dense_push_64M", "dense_pull_64M", "push_ack",  "push_ack_asleep"};
constexpr std::int64_t kMostBatches = 256;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

}  // namespace

std::span<const std::string_view> ps_tasks() { return kTasks; }

std::int64_t rows_of(std::string_view task, const PsLoad& load) {
  if (task.starts_with("push_ack")) return 1;
  if (task.starts_with("dense")) return kDenseElements[task.ends_with("64M") ? 1 : 0] / load.dim;
  return load.batch;
}

PsBatches::PsBatches(const PsLoad& load, bool sorted) : load_(load) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(load.rows));
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), std::mt19937_64(1));
  const std::int64_t batches = std::clamp<std::int64_t>(load.rows / load.batch, 1, kMostBatches);
  all.resize(static_cast<std::size_t>(std::min(batches * load.batch, load.rows)));
  load_.batch = std::min(load.batch, load.rows);
  rows_ = std::move(all);
  if (sorted) {
    for (auto batch = rows_.begin(); batch != rows_.end(); batch += load_.batch) {
      std::sort(batch, batch + load_.batch,
                [](std::int64_t a, std::int64_t b) { return id_of(a) < id_of(b); });
    }
  }
  for (const std::int64_t row : rows_) ids_.push_back(id_of(row));
  pushes_.resize(static_cast<std::size_t>(batches));
}

std::span<const std::int64_t> PsBatches::rows(std::int64_t number) const {
  const auto size = static_cast<std::size_t>(load_.batch);
  return std::span(rows_).subspan(static_cast<std::size_t>(number) * size, size);
}

std::span<const std::int64_t> PsBatches::ids(std::int64_t number) const {
  const auto size = static_cast<std::size_t>(load_.batch);
  return std::span(ids_).subspan(static_cast<std::size_t>(number) * size, size);
}

std::int64_t PsBatches::id_of(std::int64_t row) {
  return static_cast<std::int64_t>(ps::mix64(static_cast<std::uint64_t>(row) + 1) >> 1U);
}

bool PsBatches::holds(std::int64_t number, std::span<const float> values) const {
  const auto more = static_cast<float>(pushes(number));
  std::size_t place = 0;
  for (const std::int64_t row : rows(number)) {
    for (std::int64_t column = 0; column < load_.dim; ++column) {
      if (values[place++] != first_value(row, column) + more) return false;
    }
  }
  return true;
}

double time_calls(double seconds, const std::function<void()>& call,
                  const std::function<void()>& finish) {
  const auto start = Clock::now();
  std::int64_t calls = 0;
  do {
    call();
    ++calls;
  } while (us_since(start) < seconds * 1e6);
  if (finish) finish();
  return us_since(start) / static_cast<double>(calls);
}

double time_each(int calls, int idle_us, const std::function<void()>& call) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    if (idle_us > 0) ::usleep(static_cast<useconds_t>(idle_us));
    const auto start = Clock::now();
    call();
    times.push_back(us_since(start));
  }
  const auto middle = times.begin() + calls / 2;
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

}  // namespace tutti::bench
