// A trial: a job of workers and servers of which one is killed, stopped or cut off at some moment.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "tutti/ps/fleet.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::ps::faults {

enum class Fault : std::uint8_t { kill, stop, cut };
enum class Layout : std::uint8_t {
  ranks,      ///< servers are ranks of a communicator
  threads,    ///< and threads of the workers
  endpoints,  ///< and listen at addresses
  hosts,      ///< likewise, where each process takes itself for on a host of its own
};

inline constexpr int kMostProcesses = 5;
inline constexpr std::int64_t kDim = 4;
inline constexpr std::int64_t kIds = 16;  // of each worker's own; they are on all servers
inline constexpr std::chrono::seconds kDeadline{3};

/** All that is drawn; a function of the seed and the trial's number. */
struct Trial {
  Trial(std::uint64_t seed, int which);

  int processes() const { return layout == Layout::threads ? workers : workers + servers; }
  bool is_worker(int process) const { return process < workers; }
  bool is_sync() const { return std::holds_alternative<Sync>(mode); }
  /** Whether the others go on without the victim. */
  bool others_go_on() const;
  std::string text() const;

  int number;
  Layout layout{};
  int workers = 2;
  int servers = 1;
  Mode mode;
  bool consistent_rows = false;
  bool saves = false;  ///< a worker saves again and again
  Fault fault{};
  int victim = 0;                   ///< workers come first
  std::chrono::microseconds delay;  ///< after all are ready
};

/** Id `i` of a worker's own counters, which it raises by one in each step. */
constexpr std::int64_t counter(int worker, std::int64_t i) {
  return std::int64_t{1000} * (worker + 1) + i;
}

enum class End : std::uint8_t { none, done, lost, wrong };

/** What a process tells its parent, in memory that they share. */
struct Notes {
  std::atomic<bool> ready;
  std::atomic<std::int64_t> attempted;     ///< steps
  std::atomic<std::int64_t> acknowledged;  ///< by all servers
  std::atomic<std::int64_t> longest_step;  ///< in nanoseconds, since the fault
  std::atomic<std::int64_t> ended_at;      ///< in nanoseconds of the steady clock
  std::atomic<End> end;
  std::atomic<std::int64_t> lost_ranks;  ///< a bit for each
  std::array<char, 400> text;
};

struct Board {
  std::array<Notes, kMostProcesses> notes;
  std::atomic<bool> struck;
  std::atomic<bool> over;  ///< workers are to stop
};

/** How all processes of a trial find each other, and the checkpoint that servers write at the end.
 */
struct Meeting {
  UniqueId ticket = UniqueId::create();
  std::string endpoints;
  std::string folder;
};

FleetOptions options_of(const Trial& trial, const std::string& folder);

/** The life of one process of a trial, which does not return. */
[[noreturn]] void live(const Trial& trial, int process, const Meeting& meeting, Board& board);

inline std::int64_t now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

}  // namespace tutti::ps::faults
