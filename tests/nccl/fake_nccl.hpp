// A libnccl that moves nothing: it records the calls and behaves as a test tells it to.
#pragma once

#include <nccl.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

/** One for all ranks of the process. */
struct FakeNccl {
  /** Whether work on a stream has ended. */
  using Ended = std::shared_ptr<std::atomic<bool>>;

  std::mutex mutex;
  /** "rank: function arguments", in the order of the calls. */
  std::vector<std::string> calls;
  int version = 0;
  /** What a function returns, by its name and then its rank (-1: all ranks). Else ncclSuccess. A
   * communicator that blocks waits where it would say "in progress": for `patience` milliseconds,
   * or until it is aborted. */
  std::map<std::string, std::map<int, ncclResult_t>> answers;
  /** How often a communicator says "in progress" after a call that did; -1: for ever. */
  int patience = 0;
  /** What ncclCommGetAsyncError finds, once no call is in progress. */
  ncclResult_t async = ncclSuccess;
  /** Called when an operation is put on its stream. */
  std::function<void(int rank, cudaStream_t stream, const Ended& ended)> enqueue;
  /** Called where NCCL uses the GPU that is current on the thread. */
  std::function<void()> use_gpu;
  /** Whether the GPU has memory for the rank that asks on this thread. */
  std::function<bool()> has_memory;
  /** Whether operations on streams end by an abort alone. */
  bool waits_for_peers = false;
  /** Whether ncclCommDestroy waits until all ranks of the communicator have come to destroy it, or
   * to abort it, as that of a host does. */
  bool destroy_waits = false;
  /** Whether ncclCommAbort, having told the work to end, does not come to the communicator's end.
   */
  std::atomic<bool> abort_blocks = false;
  /** Ends that were waited for in vain. */
  std::atomic<int> stuck = 0;
  /** How many communicators there are. */
  std::atomic<int> alive = 0;
  /** By the communicator's id: the ranks that have come to its end. */
  std::map<std::string, std::set<int>> ended_ranks;
  int ids = 0;

  void reset() {
    calls.clear();
    version = 22809;
    answers.clear();
    patience = 0;
    async = ncclSuccess;
    enqueue = nullptr;
    use_gpu = nullptr;
    has_memory = nullptr;
    waits_for_peers = destroy_waits = false;
    abort_blocks = false;
    stuck = 0;
    ended_ranks.clear();
    ids = 0;
  }
};

/** The one in this library, whoever loaded it. */
extern "C" FakeNccl* fake_nccl();
