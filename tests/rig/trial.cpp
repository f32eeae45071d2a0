// Draws trials.
#include "rig/trial.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>
#include <sstream>

#include "support/data.hpp"

namespace tutti::test {
namespace {

// The first 30 trials are one of each.
constexpr std::array<Case, 30> kCases{{
    {"nothing", Fault::none},
    {"slow", Fault::slow},
    {"killed", Fault::kill},
    {"stopped", Fault::stop},
    {"stopped, woken late", Fault::late},
    {"segmentation fault", Fault::segfault},
    {"abort()", Fault::abort},
    {"_exit() in a call", Fault::exit_now},
    {"exit() between calls", Fault::exit},
    {"exception", Fault::exception},
    {"leaves early", Fault::leave},
    {"another call", Fault::mismatch},
    {"sleeps too long", Fault::stall},
    {"computes too long", Fault::busy},
    {"two killed", Fault::kill, Phase::step, 2},
    {"two stopped", Fault::stop, Phase::step, 2},
    {"killed and stopped", Fault::kill_stop, Phase::step, 2},
    {"all killed", Fault::kill, Phase::step, kMostRanks},
    {"killed while meeting", Fault::kill, Phase::meeting},
    {"stopped while meeting", Fault::stop, Phase::meeting},
    {"woken late while meeting", Fault::late, Phase::meeting},
    {"late for the meeting", Fault::stall, Phase::meeting},
    {"all killed while meeting", Fault::kill, Phase::meeting, kMostRanks},
    {"killed in split", Fault::kill, Phase::split},
    {"stopped in split", Fault::stop, Phase::split},
    {"killed in allocate", Fault::kill, Phase::allocate},
    {"woken late in allocate", Fault::late, Phase::allocate},
    {"killed while leaving", Fault::kill, Phase::destruction},
    {"stopped while leaving", Fault::stop, Phase::destruction},
    {"woken late, long vectors", Fault::late},
}};
constexpr std::size_t kLongVectors = kCases.size() - 1;

constexpr std::int64_t kKiB = 1024;
constexpr std::int64_t kMiB = kKiB * kKiB;

class Random {
 public:
  Random(std::uint64_t seed, std::uint64_t number) {
    std::seed_seq sequence{seed, seed >> 32U, number, number >> 32U};
    engine_.seed(sequence);
  }
  std::uint64_t operator()() { return engine_(); }
  int below(int limit) { return static_cast<int>(engine_() % static_cast<std::uint64_t>(limit)); }
  bool chance(int percent) { return below(100) < percent; }
  template <class List>
  auto of(const List& choices) {
    return choices[engine_() % choices.size()];
  }
  /** From 1 to `most`, each order of magnitude as likely. */
  std::int64_t magnitude(std::int64_t most) {
    const double fraction = static_cast<double>(engine_() >> 11U) * 0x1p-53;
    return static_cast<std::int64_t>(std::pow(static_cast<double>(most), fraction));
  }

 private:
  std::mt19937_64 engine_;
};

std::int64_t draw_count(Random& random, DType dtype, int ranks, bool is_long) {
  const std::int64_t size = size_of(dtype);
  if (is_long) return (8 + random.below(9)) * kMiB / size + random.below(3);
  constexpr std::array<std::int64_t, 9> kBounds{56,         kKiB,       4032, 64 * kKiB, 128 * kKiB,
                                                256 * kKiB, 768 * kKiB, kMiB, 4 * kMiB};
  switch (random.below(4)) {
    case 0:
      return random.below(3) + (random.chance(50) ? ranks - 1 : 0);
    case 1:  // one less, as many, or one more than fit somewhere
      return std::max<std::int64_t>(0, random.of(kBounds) / size - 1 + random.below(3));
    case 2:
      return random.magnitude(100'000);
    default:
      return random.magnitude(random.chance(10) ? 32 * kMiB : 4 * kMiB) / size;
  }
}

/** Of half of the trials, what many steps are instead. Drawn by itself: the trials of the other
 * half are what they were before there was this. */
class OtherOps {
 public:
  OtherOps(std::uint64_t seed, std::uint64_t number)
      : random_(seed, number + kOwnNumbers), any_(random_.chance(50)) {}

  Op operator()(Op op) {
    constexpr std::array<Op, 10> kOps{
        Op::gather,       Op::gather_v, Op::scatter, Op::scatter_v, Op::reduce_scatter_v,
        Op::all_to_all_v, Op::scan,     Op::exscan,  Op::exchange,  Op::exchange};
    return any_ && random_.chance(70) ? random_.of(kOps) : op;
  }

 private:
  static constexpr std::uint64_t kOwnNumbers = std::uint64_t{1} << 48U;
  Random random_;
  bool any_;
};

Op draw_op(Random& random, bool several) {
  constexpr std::array<Op, 20> kOps{Op::all_reduce,
                                    Op::all_reduce,
                                    Op::all_reduce,
                                    Op::all_reduce,
                                    Op::reduce,
                                    Op::broadcast,
                                    Op::broadcast,
                                    Op::all_gather,
                                    Op::all_gather,
                                    Op::all_gather_v,
                                    Op::all_to_all,
                                    Op::reduce_scatter,
                                    Op::sparse_all_reduce,
                                    Op::barrier,
                                    Op::ring,
                                    Op::ring,
                                    Op::train,
                                    Op::train,
                                    Op::train,
                                    Op::split};
  const Op op = random.of(kOps);
  if (op == Op::split && !several) return Op::allocate;
  return op;
}

Step draw_step(Random& random, const Trial& trial, Op op, bool is_long) {
  Step step;
  step.op = op;
  step.dtype = is_long ? DType::f32 : random.of(kDTypes);
  step.reduce = random.of(reductions(step.dtype));
  // Of a host with three ranks a third travels, rounded to 16 bits.
  const bool is_rounded =
      is_float(step.dtype) && size_of(step.dtype) == 2 && trial.hosts.starts_with('3');
  if (is_rounded && step.reduce.kind == ReduceKind::average) step.reduce = Reduce::sum;
  if (op == Op::sparse_all_reduce) {
    step.dtype = DType::f32;
    step.reduce = Reduce::sum;
  }
  step.count = draw_count(random, step.dtype, trial.ranks, is_long);
  if (has_many_parts(op) && step.count > trial.ranks) step.count /= trial.ranks;
  constexpr std::array<Place, 4> kPlaces{Place::ordinary, Place::ordinary, Place::symmetric,
                                         Place::staggered};
  step.place = random.of(kPlaces);
  const bool cannot = op == Op::all_to_all || op == Op::all_gather_v;
  step.in_place = !cannot && random.chance(30);
  const bool scans = op == Op::scan || op == Op::exscan;
  if (scans && step.reduce.kind == ReduceKind::average) step.reduce = Reduce::sum;
  step.mode = static_cast<DistMode>(random.below(5));
  const auto groups = static_cast<int>(trial.splits.size()) + 1;
  const bool for_all = op == Op::train || op == Op::split || op == Op::allocate;
  step.group = for_all ? 0 : random.below(groups);
  // A split may leave a single rank.
  step.root = step.group == 0 ? random.below(trial.ranks) : 0;
  return step;
}

Split draw_split(Random& random, int ranks) {
  Split split;
  const int kind = random.below(3);
  for (int rank = 0; rank < ranks; ++rank) {
    split.colors.push_back(kind == 0 ? rank % 2 : kind == 1 ? rank * 2 / ranks : 0);
    split.keys.push_back(random.chance(50) ? -rank : 0);
  }
  if (ranks > 2 && random.chance(30)) {
    split.colors[static_cast<std::size_t>(random.below(ranks))] = -1;
  }
  return split;
}

void draw_start(Random& random, Trial& trial) {
  const Case& what = trial.what;
  const bool in_mpi = trial.start != Start::fork;
  // Two victims leave a survivor.
  const int least = what.victims == 2 ? 3 : 2;
  trial.ranks = least + random.below(kMostRanks - least + 1);
  if (trial.start == Start::hosts) {
    constexpr std::array<std::string_view, 2> kTwo{"1+1", "1+1"};
    constexpr std::array<std::string_view, 3> kThree{"3x1", "2+1", "1+2"};
    constexpr std::array<std::string_view, 4> kFour{"2x2", "3+1", "4x1", "0,1,0,1"};
    trial.hosts = trial.ranks == 2   ? random.of(kTwo)
                  : trial.ranks == 3 ? random.of(kThree)
                                     : random.of(kFour);
  }
  // MPI's own start knows no deadline: faults in the meeting come after it.
  trial.initialises_mpi = in_mpi && (what.phase == Phase::meeting || random.chance(20));
  const bool outlived = what.victims < kMostRanks && what.phase != Phase::destruction;
  trial.recovery = in_mpi && trial.dies() && outlived && what.fault != Fault::leave &&
                   what.fault != Fault::exception && random.chance(75);
  trial.timeout = std::chrono::milliseconds(random.chance(75) ? 1000 : 2000);
  // Between hosts heartbeats tell of a death before this deadline.
  const bool is_death = what.fault == Fault::kill || what.fault == Fault::segfault ||
                        what.fault == Fault::abort || what.fault == Fault::exit_now;
  if (trial.recovery && is_death && what.phase != Phase::meeting && random.chance(25)) {
    trial.timeout = std::chrono::minutes(5);
  }
}

void draw_program(Random& random, Trial& trial) {
  const bool is_long = trial.what.name == kCases[kLongVectors].name;
  const bool several = trial.ranks > 1;
  if (!is_long && random.chance(40)) {
    const int splits = 1 + random.below(2);
    for (int i = 0; i < splits; ++i) trial.splits.push_back(draw_split(random, trial.ranks));
  }
  const int parameters = 1 + random.below(4);
  for (int i = 0; i < parameters; ++i) trial.parameters.push_back(random.magnitude(20'000));

  // One call over and over, or a mixture.
  OtherOps other(trial.seed, trial.number);
  const int length = is_long || random.chance(40) ? 1 : 2 + random.below(10);
  for (int i = 0; i < length; ++i) {
    constexpr std::array<Op, 4> kLong{Op::all_reduce, Op::all_reduce, Op::broadcast,
                                      Op::reduce_scatter};
    const Op op = is_long ? random.of(kLong) : other(draw_op(random, several));
    trial.program.push_back(draw_step(random, trial, op, is_long));
  }
  trial.steps = std::max(10, 2 * length) + random.below(20);
  trial.step = random.below(is_long ? 20 : 30);

  Step& struck = trial.program[static_cast<std::size_t>(trial.step % length)];
  if (trial.what.phase == Phase::split) struck = {.op = Op::split};
  if (trial.what.phase == Phase::allocate) {
    struck = {.op = Op::allocate, .dtype = DType::u8, .count = random.magnitude(16 * kMiB)};
  }
  if (trial.what.fault == Fault::mismatch) {
    while (struck.op == Op::ring || struck.op == Op::exchange || struck.op == Op::train ||
           struck.op == Op::split) {
      struck = draw_step(random, trial, draw_op(random, several), false);
    }
    struck.group = 0;
  }
  // Somewhere all ranks wait for each other, or a fault would go unnoticed.
  if (std::none_of(trial.program.begin(), trial.program.end(),
                   [](const Step& step) { return step.group == 0; })) {
    trial.program.front().group = 0;
  }
}

}  // namespace

std::span<const Case> cases() { return kCases; }

std::string_view name_of(Start start) {
  constexpr std::array<std::string_view, kStarts> kNames{"forked", "mpiexec", "hosts"};
  return kNames[static_cast<std::size_t>(start)];
}

bool Trial::is_victim(int rank) const {
  return std::find(victims.begin(), victims.end(), rank) != victims.end();
}

std::vector<int> Trial::members(int group, int rank) const {
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  if (group == 0) return all;
  const Split& split = splits[static_cast<std::size_t>(group) - 1];
  const auto color = [&](int r) { return split.colors[static_cast<std::size_t>(r)]; };
  const auto key = [&](int r) { return split.keys[static_cast<std::size_t>(r)]; };
  std::erase_if(all, [&](int r) { return color(r) < 0 || color(r) != color(rank); });
  std::stable_sort(all.begin(), all.end(), [&](int a, int b) { return key(a) < key(b); });
  return all;
}

bool Trial::dies() const {
  constexpr std::array<Fault, 7> kDeaths{Fault::kill,     Fault::segfault,  Fault::abort,
                                         Fault::exit_now, Fault::exception, Fault::leave,
                                         Fault::kill_stop};
  return std::find(kDeaths.begin(), kDeaths.end(), what.fault) != kDeaths.end();
}

bool Trial::ends() const {
  return what.fault == Fault::none || what.fault == Fault::slow || what.phase == Phase::destruction;
}

bool Trial::wakes() const {
  return what.fault == Fault::late || what.fault == Fault::stall || what.fault == Fault::busy;
}

std::string Trial::describe() const {
  std::ostringstream text;
  text << what.name << ", " << ranks << " ranks " << name_of(start);
  if (!hosts.empty()) text << " " << hosts;
  text << ", deadline " << timeout.count() << " ms";
  if (initialises_mpi) text << ", MPI initialised before";
  if (recovery) text << ", --enable-recovery";
  if (keeps) text << ", communicators kept";
  text << "\n";
  for (const Split& split : splits) {
    text << "  split:";
    for (std::size_t i = 0; i < split.colors.size(); ++i) {
      text << " " << split.colors[i] << "/" << split.keys[i];
    }
    text << "\n";
  }
  for (const Step& each : program) text << "  " << each.describe() << "\n";
  if (what.fault == Fault::slow) text << "  rank " << victims.front() << " comes late\n";
  for (std::size_t i = 0; i < victims.size() && what.fault != Fault::slow; ++i) {
    text << "  rank " << victims[i] << " in step " << step << " ("
         << program[static_cast<std::size_t>(step) % program.size()].describe() << ") after "
         << microseconds[i] << " us\n";
  }
  return text.str();
}

Trial make_trial(std::uint64_t seed, std::uint64_t number) {
  Random random(seed, number);
  Trial trial;
  trial.seed = seed;
  trial.number = number;
  trial.what = kCases[number % kCases.size()];
  trial.start = static_cast<Start>((number + number / kCases.size()) % kStarts);
  // MPI's own end knows no deadline.
  if (trial.what.phase == Phase::destruction && trial.what.fault == Fault::stop) {
    trial.start = Start::fork;
  }
  draw_start(random, trial);
  draw_program(random, trial);
  trial.keeps = trial.splits.empty() && random.chance(50);

  if (trial.what.fault == Fault::none) return trial;
  trial.victims.resize(static_cast<std::size_t>(trial.ranks));
  std::iota(trial.victims.begin(), trial.victims.end(), 0);
  for (std::size_t i = trial.victims.size(); i > 1; --i) {
    std::swap(trial.victims[i - 1], trial.victims[random() % i]);
  }
  trial.victims.resize(
      std::min(trial.victims.size(), static_cast<std::size_t>(trial.what.victims)));
  for (std::size_t i = 0; i < trial.victims.size(); ++i) {
    trial.microseconds.push_back(random.magnitude(30'000));
  }
  return trial;
}

}  // namespace tutti::test
