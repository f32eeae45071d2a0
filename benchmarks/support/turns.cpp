// Times variants of a collective in turns.
#include "support/turns.hpp"

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>

#include "support/elements.hpp"

namespace tutti::bench {
namespace {

constexpr std::int64_t kLoopBelow = 4 << 10;  // bytes
constexpr int kLoop = 50;
constexpr int kFewestRounds = 5;
constexpr int kMostRounds = 20'000;
constexpr int kWarmUp = 10;     // rounds
constexpr int kLearning = 110;  // operations, if they are not large: those are tried less often
constexpr int kLearningLarge = 50;
constexpr std::int64_t kLarge = 8 << 20;  // bytes

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool all_ranks(bool ok) {
  int all = ok ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &all, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return all != 0;
}

bool succeeded(const Communicator& comm, const Call& call, const Pattern& pattern) {
  return call.succeeded(comm.global_rank(), comm.world_size(), pattern);
}

/** One round of one variant: seconds of an operation on this rank; negative if it was wrong. */
double sample(Communicator& comm, const Variant& variant, const Pattern& pattern) {
  const Call& call = variant.call;
  call.prepare(comm.global_rank(), pattern);
  const auto bytes = static_cast<std::size_t>(call.in.bytes());
  const bool loop = call.bytes() < kLoopBelow;
  std::vector<std::byte> source(loop ? bytes : 0);
  if (loop) std::memcpy(source.data(), call.in.data, bytes);
  // Twice: the ranks leave a barrier closer to each other than they came to it.
  comm.barrier();
  comm.barrier();
  const double start = now();
  for (int i = 0; i < (loop ? kLoop : 1); ++i) {
    if (loop) std::memcpy(call.in.data, source.data(), bytes);
    variant.run();
  }
  const double spent = (now() - start) / (loop ? kLoop : 1);
  return variant.performs && !succeeded(comm, call, pattern) ? -1 : spent;
}

bool check(Communicator& comm, const Variant& variant) {
  bool ok = true;
  for (int base = 1; base <= 2 && ok; ++base) {
    const Pattern pattern{base, 5};
    variant.call.prepare(comm.global_rank(), pattern);
    comm.barrier();
    variant.run();
    ok = all_ranks(!variant.performs || succeeded(comm, variant.call, pattern));
  }
  if (!ok) std::fprintf(stderr, "wrong result: %s\n", variant.name.c_str());
  return ok;
}

/** False once rank 0 finds that `seconds` have passed since `start`. */
bool time_left(double start, double seconds) {
  int left = now() - start < seconds ? 1 : 0;
  MPI_Bcast(&left, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return left != 0;
}

}  // namespace

bool take_turns(Communicator& comm, std::vector<Variant>& variants, double seconds) {
  for (const Variant& variant : variants) {
    if (!check(comm, variant)) return false;
  }
  double wrong = 0;
  std::vector<std::size_t> order(variants.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::minstd_rand random;  // alike on all ranks
  const auto round = [&](int number, bool counts) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::size_t next : order) {
      Variant& variant = variants[next];
      const double spent = sample(comm, variant, Pattern{1 + number % 3, 1});
      wrong = std::min(wrong, spent);
      if (counts) variant.seconds.push_back(spent);
    }
  };
  for (const Variant& variant : variants) {
    const int learning = variant.call.bytes() < kLarge ? kLearning : kLearningLarge;
    for (int i = 0; variant.learns && i < learning; ++i) {
      wrong = std::min(wrong, sample(comm, variant, Pattern{1, 1}));
    }
  }
  const double warm_up = now();
  for (int i = 0; i < kWarmUp && time_left(warm_up, seconds / 2); ++i) round(i, false);
  const double start = now();
  for (int i = 0; i < kMostRounds && (i < kFewestRounds || time_left(start, seconds)); ++i) {
    round(i, true);
  }
  for (Variant& variant : variants) {
    MPI_Allreduce(MPI_IN_PLACE, variant.seconds.data(), static_cast<int>(variant.seconds.size()),
                  MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  }
  if (all_ranks(wrong >= 0)) return true;
  std::fprintf(stderr, "wrong result in a timed operation\n");
  return false;
}

double median_us(std::vector<double> seconds) {
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle * 1e6;
}

}  // namespace tutti::bench
