// How soon the others are told that a rank was killed.
//
//   killed_rank_bench [--ranks N] [--device cpu|cuda]
//
// Forks the ranks, 3 unless told. They all sum the same memory over and over; the last rank kills
// itself with a sum under way. Prints a JSON line: `named_seconds`, from the kill to the PeerLost
// of the slowest survivor; `ended_seconds`, to its end; `checked`: every survivor named that rank
// alone. Status 77 without a GPU where one is asked for, 1 if a survivor named another rank or
// none.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/refuse.hpp"
#include "support/numbers.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"

namespace {

constexpr int kNoGpu = 77;
constexpr int kMostRanks = 64;
constexpr int kSumsBefore = 20;
constexpr std::int64_t kBytes = 4 << 20;

/** Seconds of a clock that all processes of the machine share. */
double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/** What a rank leaves behind; a time is 0 before it has come. */
struct RankNotes {
  int world_size;
  double killed;
  double named;
  double ended;
  bool right;
};

/** Notes of all ranks, in memory that forked processes share. */
class SharedNotes {
 public:
  SharedNotes() {
    void* memory =
        ::mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
    notes_ = new (memory) RankNotes[kMostRanks]{};
  }
  SharedNotes(const SharedNotes&) = delete;
  SharedNotes& operator=(const SharedNotes&) = delete;
  ~SharedNotes() { ::munmap(notes_, kSize); }
  RankNotes& operator[](int rank) const { return notes_[rank]; }

 private:
  static constexpr std::size_t kSize = kMostRanks * sizeof(RankNotes);
  RankNotes* notes_ = nullptr;
};

/** Sums until a rank is lost, or is the one. */
void sum(tutti::Communicator& comm, const tutti::Stream& stream, RankNotes& notes) {
  const tutti::Buffer memory = stream.allocate(kBytes);
  const tutti::View data = memory.view(tutti::DType::f32);
  stream.fill_with_zeros(data);
  const int victim = comm.world_size() - 1;
  for (int i = 0;; ++i) {
    if (comm.global_rank() == victim && i == kSumsBefore) {
      if (!stream.is_inline()) comm.all_reduce(data, tutti::Reduce::sum, stream);
      notes.killed = now();
      std::raise(SIGKILL);
    }
    try {
      comm.all_reduce(data, tutti::Reduce::sum, stream).wait();
    } catch (const tutti::PeerLost& error) {
      notes.named = now();
      notes.right = error.ranks() == std::vector<int>{victim};
      if (!notes.right) std::fprintf(stderr, "rank %d: %s\n", comm.global_rank(), error.what());
      return;
    }
  }
}

int run_rank(int rank, int ranks, const tutti::UniqueId& id, bool on_gpu, RankNotes& notes) {
  if (on_gpu && tutti::gpu_count() == 0) return kNoGpu;
  try {
    tutti::Communicator comm(rank, ranks, id);
    notes.world_size = comm.world_size();
    sum(comm, on_gpu ? tutti::Stream::on(comm.device()) : tutti::Stream(), notes);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
    return 1;
  }
  notes.ended = now();
  return 0;
}

/** Waits for all ranks; the status of rank 0, or of another that did not end as it should. */
int wait_for(const std::vector<pid_t>& ranks) {
  int result = 0;
  for (std::size_t rank = ranks.size(); rank-- > 0;) {
    int status = 0;
    ::waitpid(ranks[rank], &status, 0);
    const bool victim = rank + 1 == ranks.size();
    if (victim && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) continue;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) continue;
    result = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  }
  return result;
}

int run(int ranks, const std::string& device) {
  const SharedNotes notes;
  const tutti::UniqueId id = tutti::UniqueId::create();
  std::vector<pid_t> processes;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t process = ::fork();
    if (process < 0) throw std::runtime_error("cannot fork");
    if (process == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::_Exit(run_rank(rank, ranks, id, device == "cuda", notes[rank]));
    }
    processes.push_back(process);
  }
  const int status = wait_for(processes);
  if (status == kNoGpu) {
    std::fprintf(stderr, "no GPU\n");
    return kNoGpu;
  }
  const double killed = notes[ranks - 1].killed;
  double named = 0.0;
  double ended = 0.0;
  bool good = status == 0 && killed > 0.0;
  for (int rank = 0; rank < ranks - 1; ++rank) {
    named = std::max(named, notes[rank].named - killed);
    ended = std::max(ended, notes[rank].ended - killed);
    good = good && notes[rank].right && notes[rank].ended > 0.0;
  }
  std::printf(
      "{\"bench\": \"killed_rank\", \"device\": \"%s\", \"world_size\": %d, \"named_seconds\": "
      "%.3f, "
      "\"ended_seconds\": %.3f, \"checked\": %s}\n",
      device.c_str(), notes[0].world_size, named, ended, good ? "true" : "false");
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 3;
  std::string device = "cpu";
  try {
    for (int i = 1; i < argc; i += 2) {
      const std::string name = argv[i];
      if (i + 1 == argc) throw tutti::InvalidArgument(name + " has no value");
      const std::string value = argv[i + 1];
      if (name == "--ranks") {
        ranks = tutti::bench::number_of(name, value, 2, kMostRanks);
      } else if (name == "--device" && (value == "cpu" || value == "cuda")) {
        device = value;
      } else {
        tutti::refuse(name, " has '", value, "', but must be --ranks N or --device cpu|cuda");
      }
    }
    return run(ranks, device);
  } catch (const tutti::InvalidArgument& error) {
    std::fprintf(stderr,
                 "killed_rank_bench: %s\nusage: killed_rank_bench [--ranks 2..%d] [--device "
                 "cpu|cuda]\n",
                 error.what(), kMostRanks);
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "killed_rank_bench: %s\n", error.what());
    return 1;
  }
}
