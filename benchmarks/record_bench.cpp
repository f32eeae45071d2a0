// What it costs to note a call: by the flight recorder alone, and with a timeline. Nanoseconds a
// call, the least of 30 rounds.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/record/journal.hpp"
#include "comm/record/trace.hpp"
#include "comm/record/trace_file.hpp"
#include "tutti/call.hpp"

namespace {

using tutti::record::CallNote;
using tutti::record::CallState;
using tutti::record::Journal;
using tutti::record::Trace;
using tutti::record::TraceFile;

constexpr int kRounds = 30;
constexpr int kCalls = 20000;

/** A rank whose neighbours have nothing to say. */
class Alone final : public tutti::record::Neighbours {
 public:
  std::optional<tutti::record::Flight> claim_flight() override { return std::nullopt; }
  std::optional<std::string> claim_late(int /*rank*/) override { return std::nullopt; }
};

double cpu_nanoseconds() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

/** The least that a call takes over the rounds. */
double note_calls(Journal& journal, Trace* trace) {
  using Clock = std::chrono::steady_clock;
  std::vector<float> data(1024);
  const auto call = tutti::Call::all_reduce(std::span(data), std::span(data), {});
  double least = std::numeric_limits<double>::max();
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCalls; ++i) {
      CallNote note(&journal, call);
      asm volatile("" ::: "memory");
      note.ended(CallState::done);
    }
    const std::chrono::duration<double, std::nano> took = Clock::now() - start;
    least = std::min(least, took.count() / kCalls);
    if (trace != nullptr) trace->flush();
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    std::fprintf(stderr, "record_bench: takes no argument, but has '%s'\n", argv[1]);
    return 2;
  }
  const std::filesystem::path path = std::filesystem::temp_directory_path() /
                                     ("record_bench-" + std::to_string(getpid()) + ".json");
  const auto ring = std::make_unique<tutti::record::Ring>();
  Alone alone;
  Journal journal(*ring, alone);
  std::printf("recorder: %.1f ns\n", note_calls(journal, nullptr));

  TraceFile::create(path, "bench");
  std::optional<TraceFile> file = TraceFile::open(path, "bench");
  if (!file) return 1;
  Trace trace(std::move(*file), {0, "rank 0", tutti::record::TickClock::monotonic()});
  journal.set_trace(&trace);
  const double before = cpu_nanoseconds();
  const double least = note_calls(journal, &trace);
  trace.close();
  std::printf("recorder and timeline: %.1f ns\n", least);
  std::printf("with writing, in CPU time of the process: %.1f ns\n",
              (cpu_nanoseconds() - before) / (kRounds * kCalls));
  std::filesystem::remove(path);
  return 0;
}
