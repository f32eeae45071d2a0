// A rank is stopped in the middle of a collective, given up by the others, and continued.
//
// It must learn that it was declared lost, whatever it still read; and what it still writes must
// not reach the memory of the others, who use theirs again by then. Where it stops is definite: it
// meets a page that it may not touch, or is about to read the memory of another process.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <functional>
#include <list>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "comm/shm/transport.hpp"
#include "rig/processes.hpp"
#include "tutti/error.hpp"

namespace {

std::atomic<int> g_reads = 0;    // of other processes' memory, so far
std::atomic<int> g_stop_at = 0;  // the number of the one before which this process stops

}  // namespace

/** Stands in front of the C library's, whose parameters have reserved names. */
// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
extern "C" ssize_t process_vm_readv(pid_t pid, const iovec* local, unsigned long local_count,
                                    const iovec* remote, unsigned long remote_count,
                                    unsigned long flags) {
  if (++g_reads == g_stop_at) ::raise(SIGSTOP);
  return ::syscall(SYS_process_vm_readv, pid, local, local_count, remote, remote_count, flags);
}

namespace tutti::test::late_rank_test {
namespace {

using namespace std::chrono_literals;
using shm::Choices;
using shm::ShmTransport;
using shm::Way;

constexpr int kRanks = 3;
constexpr int kVictim = 1;
constexpr std::chrono::milliseconds kTimeout = 3s;  // even the start takes less
constexpr std::chrono::milliseconds kPatience = 30s;
constexpr std::int64_t kPage = 4096;
constexpr float kJunk = -77.0F;  // what the survivors write into their memory afterwards

enum class Stop {
  last_read,   ///< before its last read of another process' memory
  peers,       ///< at its first access to the others' symmetric memory
  own_input,   ///< when it reads its input
  own_output,  ///< when it writes its output
};

struct LateCase {
  const char* name;
  Way way;
  Stop stop;
  std::int64_t count;  ///< floats of the larger argument
  /** On memory for `count` floats each. */
  std::function<void(ShmTransport& transport, View in, View out)> call;
};

// --- Stopping at a page --------------------------------------------------------------------------

/** Pages of this process that stop it when it touches them. There is one set at a time. */
class Trap {
 public:
  static void set(std::span<const std::span<std::byte>> ranges) {
    instance() = Trap();
    struct sigaction action {};
    action.sa_handler = [](int) { instance().spring(); };
    ::sigaction(SIGSEGV, &action, nullptr);
    for (const auto range : ranges) {
      instance().ranges_.at(instance().count_++) = range;
      ::mprotect(range.data(), range.size(), PROT_NONE);
    }
  }

 private:
  static Trap& instance() {
    static Trap trap;
    return trap;
  }
  void spring() {
    for (std::size_t i = 0; i < count_; ++i) {
      ::mprotect(ranges_.at(i).data(), ranges_.at(i).size(), PROT_READ | PROT_WRITE);
    }
    if (count_ == 0) std::_Exit(1);  // another fault
    count_ = 0;
    ::raise(SIGSTOP);
  }

  std::array<std::span<std::byte>, kRanks> ranges_;
  std::size_t count_ = 0;
};

// --- The ranks -----------------------------------------------------------------------------------

/** Whole pages for an input and an output. */
class Memory {
 public:
  Memory(ShmTransport& transport, const LateCase& the_case)
      : bytes_((the_case.count * size_of(DType::f32) + kPage - 1) / kPage * kPage),
        rank_(transport.rank()) {
    if (the_case.stop == Stop::peers) {
      symmetric_ = transport.allocate(2 * bytes_);
      start_ = static_cast<std::byte*>(symmetric_.data());
    } else {
      void* start = ::mmap(nullptr, static_cast<std::size_t>(2 * bytes_), PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (start == MAP_FAILED) throw SystemError("cannot map memory", errno);
      start_ = static_cast<std::byte*>(start);  // the process ends soon
    }
  }

  View in() const { return {start_, bytes_ / size_of(DType::f32), DType::f32}; }
  View out() const { return {start_ + bytes_, bytes_ / size_of(DType::f32), DType::f32}; }

  /** Both arguments. */
  std::span<float> all() const {
    return {reinterpret_cast<float*>(start_), static_cast<std::size_t>(bytes_ / 2)};
  }
  void arm(Stop stop) const {
    const auto bytes = static_cast<std::size_t>(bytes_);
    std::vector<std::span<std::byte>> ranges;
    if (stop == Stop::own_input) ranges.emplace_back(start_, bytes);
    if (stop == Stop::own_output) ranges.emplace_back(start_ + bytes, bytes);
    for (int peer = 0; stop == Stop::peers && peer < kRanks; ++peer) {
      if (peer != rank_) ranges.emplace_back(start_ + (peer - rank_) * (2 * bytes_), 2 * bytes);
    }
    if (!ranges.empty()) Trap::set(ranges);
  }

 private:
  std::int64_t bytes_;
  int rank_;
  Buffer symmetric_;
  std::byte* start_ = nullptr;
};

/** What the ranks and the test show each other. */
struct Board {
  std::atomic<bool> cannot_read;  ///< the memory of other processes
  std::atomic<int> gave_up;
  std::atomic<bool> victim_done;
  std::array<Report, kRanks> reports;
};

/** The calls before the last are whole: the ranks find out what they can reach, and this one counts
 * its reads. */
void be_victim(ShmTransport& transport, const Memory& memory, const LateCase& the_case,
               Board& board) {
  for (int i = 0; i < 2; ++i) the_case.call(transport, memory.in(), memory.out());
  const int before = g_reads;
  the_case.call(transport, memory.in(), memory.out());
  if (the_case.stop == Stop::last_read) {
    const int reads = g_reads - before;
    g_stop_at = g_reads + reads;
    if (reads == 0) {  // it stops before the call
      board.cannot_read = true;
      ::raise(SIGSTOP);
    }
  }
  memory.arm(the_case.stop);
  the_case.call(transport, memory.in(), memory.out());
}

std::string be_survivor(ShmTransport& transport, const Memory& memory, const LateCase& the_case,
                        Board& board) {
  std::string outcome;
  try {
    for (;;) the_case.call(transport, memory.in(), memory.out());
  } catch (const PeerLost& error) {
    outcome = describe(error);
  }
  const std::span<float> data = memory.all();
  std::fill(data.begin(), data.end(), kJunk);
  ++board.gave_up;
  if (!holds_within(kPatience, [&] { return board.victim_done.load(); })) return "left alone";
  const auto changed = std::count_if(data.begin(), data.end(), [](float x) { return x != kJunk; });
  if (changed != 0) outcome = std::to_string(changed) + " elements were overwritten";
  return outcome;
}

void be_rank(int rank, const UniqueId& id, const LateCase& the_case, Board& board) {
  std::string outcome = "returned as if nothing had happened";
  try {
    std::vector<int> names(kRanks);
    std::iota(names.begin(), names.end(), 0);
    ShmTransport transport(id, rank, names, kTimeout);
    const Memory memory(transport, the_case);
    transport.local().force(the_case.way);
    if (rank == kVictim) {
      be_victim(transport, memory, the_case, board);
    } else {
      outcome = be_survivor(transport, memory, the_case, board);
    }
  } catch (const PeerLost& error) {
    outcome = describe(error);
  } catch (const std::exception& error) {
    outcome = std::string("threw: ") + error.what();
  }
  board.reports.at(static_cast<std::size_t>(rank)).end_with(outcome);
}

// --- The test ------------------------------------------------------------------------------------

/** The ranks of a case, which begin at once. */
class Scenario {
 public:
  explicit Scenario(const LateCase& the_case) : case_(the_case) {
    for (int rank = 0; rank < kRanks; ++rank) {
      ranks_.start([this, rank] { be_rank(rank, id_, case_, *board_); });
    }
  }

  bool could_read() const { return !board_->cannot_read; }

  void expect_that_the_victim_learns_of_its_loss() {
    SCOPED_TRACE(case_.name);
    ASSERT_TRUE(ranks_.stops(kVictim, kPatience)) << outcome_of(kVictim);
    EXPECT_TRUE(holds_within(kPatience, [&] { return board_->gave_up == kRanks - 1; }));
    ranks_.send(kVictim, SIGCONT);
    EXPECT_TRUE(ranks_.wait(kVictim, kPatience));
    board_->victim_done = true;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != kVictim) {
        EXPECT_TRUE(ranks_.wait(rank, kPatience));
      }
      const std::string outcome = outcome_of(rank);
      EXPECT_TRUE(outcome.starts_with("lost 1: ")) << "rank " << rank << ": " << outcome;
    }
  }

 private:
  std::string outcome_of(int rank) const {
    return board_->reports.at(static_cast<std::size_t>(rank)).outcome.data();
  }

  const LateCase& case_;
  Shared<Board> board_;
  UniqueId id_ = UniqueId::create();
  Processes ranks_;
};

/** Cases that wait for their deadlines together. */
struct Group {
  const char* name;
  std::vector<LateCase> cases;
};

std::ostream& operator<<(std::ostream& out, const Group& group) { return out << group.name; }

class LateRank : public ::testing::TestWithParam<Group> {};

TEST_P(LateRank, LearnsOfItsLossAndTouchesNobodysMemory) {
  std::list<Scenario> scenarios;
  for (const LateCase& the_case : GetParam().cases) scenarios.emplace_back(the_case);
  bool could_read = true;
  for (Scenario& scenario : scenarios) {
    scenario.expect_that_the_victim_learns_of_its_loss();
    could_read = could_read && scenario.could_read();
  }
  if (!could_read) {
    GTEST_SKIP() << "processes may not read each other's memory here (ptrace_scope, seccomp): "
                    "ranks stopped between two calls, not within one";
  }
}

constexpr std::int64_t kLarge = 300'000;
constexpr std::int64_t kPiece = 60'000;  // what fits a single piece of staging memory
constexpr Way kCopy{Way::Kind::single_copy, false, Choices::kPiece};
constexpr Way kDirect{Way::Kind::direct, false, 0};
constexpr Way kStaged{Way::Kind::staged, false, Choices::kPiece};

View first(View view, std::int64_t count) { return view.part(0, count); }

void all_reduce(ShmTransport& transport, View in, View out) {
  transport.run(Call::all_reduce(in, out, Reduce::sum));
}
void all_reduce_line(ShmTransport& transport, View in, View out) {
  transport.run(Call::all_reduce(first(in, 5), first(out, 5), Reduce::sum));
}
void reduce(ShmTransport& transport, View in, View out) {
  transport.run(Call::reduce(in, out, Reduce::sum, kVictim));
}
void broadcast(ShmTransport& transport, View in, View out) {
  transport.run(Call::broadcast(in, out, kRanks - 1));
}
void all_gather(ShmTransport& transport, View in, View out) {
  const std::int64_t part = out.count / kRanks;
  transport.run(Call::all_gather(first(in, part), first(out, part * kRanks)));
}
void reduce_scatter(ShmTransport& transport, View in, View out) {
  const std::int64_t part = in.count / kRanks;
  transport.run(Call::reduce_scatter(first(in, part * kRanks), first(out, part), Reduce::sum));
}
void all_to_all(ShmTransport& transport, View in, View out) {
  const std::int64_t whole = in.count / kRanks * kRanks;
  transport.run(Call::all_to_all(first(in, whole), first(out, whole), kRanks));
}
void sparse(ShmTransport& transport, View in, View out) {
  static constexpr std::array<std::uint32_t, 3> kIndices{1, 20, 300};
  transport.run(Call::sparse_all_reduce({kIndices.data(), static_cast<const float*>(in.data), 3},
                                        out, Reduce::sum));
}
/** From rank 2 to the victim; rank 0 waits for the victim as well. */
void message(ShmTransport& transport, View in, View out) {
  if (transport.rank() == 2) transport.run(Call::send(in, kVictim));
  if (transport.rank() == kVictim) transport.run(Call::recv(out, 2));
  if (transport.rank() == 0) transport.run(Call::recv(out, kVictim));
}

INSTANTIATE_TEST_SUITE_P(
    Ways, LateRank,
    ::testing::Values(
        Group{"copy",
              {{"all_reduce", kCopy, Stop::last_read, kLarge, all_reduce},
               {"reduce", kCopy, Stop::last_read, kLarge, reduce},
               {"broadcast", kCopy, Stop::last_read, kLarge, broadcast},
               {"all_gather", kCopy, Stop::last_read, kLarge, all_gather},
               {"reduce_scatter", kCopy, Stop::last_read, kLarge, reduce_scatter},
               {"all_to_all", kCopy, Stop::last_read, kLarge, all_to_all}}},
        Group{"direct",
              {{"all_reduce", kDirect, Stop::peers, kLarge, all_reduce},
               {"reduce", kDirect, Stop::peers, kLarge, reduce},
               {"broadcast", kDirect, Stop::peers, kLarge, broadcast},
               {"all_gather", kDirect, Stop::peers, kLarge, all_gather},
               {"reduce_scatter", kDirect, Stop::peers, kLarge, reduce_scatter},
               {"all_to_all", kDirect, Stop::peers, kLarge, all_to_all}}},
        Group{"staged",
              {{"all_reduce_line", Choices::kPlainShot, Stop::own_input, 5, all_reduce_line},
               {"all_reduce_shot", Choices::kPlainShot, Stop::own_output, 1000, all_reduce},
               {"all_reduce", kStaged, Stop::own_output, kPiece, all_reduce},
               {"broadcast", kStaged, Stop::own_output, kPiece, broadcast},
               {"sparse", kStaged, Stop::own_input, 1000, sparse},
               {"message", kStaged, Stop::own_output, 1000, message}}}),
    [](const auto& the) { return std::string(the.param.name); });

}  // namespace
}  // namespace tutti::test::late_rank_test
