// What a trial is: a pure function of the seed and the trial's number.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/dist_opt.hpp"
#include "tutti/dtype.hpp"
#include "tutti/transport.hpp"

namespace tutti::test {

inline constexpr int kMostRanks = 4;

/** How the ranks of a trial are started. */
enum class Start : std::uint8_t {
  fork,   ///< forked processes that hold a ticket
  mpi,    ///< mpiexec on one host
  hosts,  ///< mpiexec on pretended hosts
};
inline constexpr int kStarts = 3;
std::string_view name_of(Start start);

/** What is wrong with the ranks that are its victims. */
enum class Fault : std::uint8_t {
  none,
  slow,       ///< comes late several times, but before the deadline
  kill,       ///< SIGKILL
  stop,       ///< SIGSTOP, for ever
  late,       ///< SIGSTOP, and SIGCONT once the others have given up
  segfault,   ///< SIGSEGV
  abort,      ///< SIGABRT
  exit_now,   ///< _exit() in the midst of a call
  exit,       ///< exit() between two calls, without destroying anything
  exception,  ///< one is thrown, and destroys the communicators as it passes
  leave,      ///< it ends early, and well
  mismatch,   ///< another call than that of the others
  stall,      ///< sleeps until the others have given up
  busy,       ///< computes until the others have given up
  kill_stop,  ///< the first victim is killed, the second stopped
};

/** During what the fault strikes. */
enum class Phase : std::uint8_t { meeting, step, split, allocate, destruction };

/** One line of the table of what can happen. */
struct Case {
  std::string_view name;
  Fault fault;
  Phase phase = Phase::step;
  int victims = 1;  ///< kMostRanks: all
};
std::span<const Case> cases();

enum class Op : std::uint8_t {
  all_reduce,
  reduce,
  broadcast,
  all_gather,
  all_gather_v,
  reduce_scatter,
  all_to_all,
  gather,
  gather_v,
  scatter,
  scatter_v,
  reduce_scatter_v,
  all_to_all_v,
  scan,
  exscan,
  sparse_all_reduce,
  barrier,
  ring,      ///< every rank sends to the next and receives from the one before
  exchange,  ///< every rank sends to all others, and receives from them or from any
  train,     ///< a step of DistOpt
  split,     ///< and a barrier in the part
  allocate,  ///< symmetric memory, which goes back at once
};
std::string_view name_of(Op op);
/** Whether a rank has memory for a block of each rank. */
bool has_many_parts(Op op);

/** Where the arguments of a collective lie. */
enum class Place : std::uint8_t {
  ordinary,   ///< this process' own memory, one element off its alignment
  symmetric,  ///< at the same place on every rank
  staggered,  ///< in symmetric memory, at a place that differs by rank
};

/** One call of all ranks of a group. */
struct Step {
  Op op = Op::barrier;
  DType dtype = DType::f32;
  Reduce reduce{};
  std::int64_t count = 0;
  Place place = Place::ordinary;
  bool in_place = false;
  int root = 0;
  int group = 0;  ///< 0: all ranks; otherwise a split
  DistMode mode = DistMode::full;

  /** Room for `in` and `out` in elements, for `ranks` ranks. */
  std::int64_t elements(int ranks) const;
  std::string describe() const;
};

/** Colours and keys of all ranks. */
struct Split {
  std::vector<int> colors;
  std::vector<int> keys;
};

struct Trial {
  std::uint64_t seed = 0;
  std::uint64_t number = 0;
  Case what{};
  Start start = Start::fork;
  int ranks = 2;
  std::string hosts;  ///< as parse_hosts() reads it; empty for one
  std::chrono::milliseconds timeout{1000};
  bool initialises_mpi = false;  ///< the ranks themselves, before tutti
  bool recovery = false;         ///< mpiexec goes on after the death of a rank
  bool keeps = false;            ///< survivors keep their communicators until the end

  std::vector<Split> splits;
  std::vector<std::int64_t> parameters;  ///< sizes, for Op::train
  std::vector<Step> program;             ///< repeated until something happens
  int steps = 0;                         ///< of a program that ends

  std::vector<int> victims;
  int step = 0;                            ///< number of the one in which the fault strikes
  std::vector<std::int64_t> microseconds;  ///< after its beginning, for each victim

  bool is_victim(int rank) const;
  /** The ranks of the part of split number `group` that `rank` is in, in its order; group 0 is all
   * ranks. Empty if it is in none. */
  std::vector<int> members(int group, int rank) const;
  /** Whether the victims end by themselves, so that others may notice before the deadline. */
  bool dies() const;
  /** Whether the program ends by itself if nothing happens. */
  bool ends() const;
  /** Whether the victims go on when the others have given up. */
  bool wakes() const;
  std::string describe() const;
};

Trial make_trial(std::uint64_t seed, std::uint64_t number);

/** What a rank calls that does not call what the others do. */
Step mistaken(const Step& step, std::uint64_t choice, int ranks);

}  // namespace tutti::test
