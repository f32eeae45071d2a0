// A fiber for each thread of a block, and who has the turn.
#include "gpu/on_cpu/grid.hpp"

#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csetjmp>
#include <memory>
#include <mutex>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

namespace tutti::on_cpu {

// NOLINTBEGIN(readability-identifier-naming)
uint3 threadIdx;
uint3 blockIdx;
dim3 gridDim;
// NOLINTEND(readability-identifier-naming)

namespace {

constexpr unsigned kMostThreads = 1024;  // of a block
constexpr std::size_t kWarp = 32;
constexpr int kMostRounds = 1000000;  // of a block, where a hundred are many
constexpr std::size_t kStackBytes = std::size_t{256} << 10U;

/** A stack below which nothing may be touched. */
class Stack {
 public:
  Stack()
      : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))),
        memory_(mmap(nullptr, page_ + kStackBytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    if (memory_ == MAP_FAILED || mprotect(memory_, page_, PROT_NONE) != 0) {
      throw std::system_error(errno, std::generic_category(), "a fiber's stack");
    }
  }
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;
  ~Stack() { munmap(memory_, page_ + kStackBytes); }

  void* lowest() const { return static_cast<char*>(memory_) + page_; }

 private:
  std::size_t page_;
  void* memory_;
};

enum class Waits { nowhere, for_block, for_warp, for_work };

/** A thread of a block. It lives on and takes part in the next block. */
struct Fiber {
  Stack stack;
  std::jmp_buf place;
  bool begun = false;
  Waits waits = Waits::nowhere;
  unsigned exchanges = 0;
};

struct Warp {
  std::array<Exchange, 2> exchanges;  // in turns: a lane may be one exchange ahead of another
  std::size_t arrived = 0;
};

/** The block that runs. */
struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<Warp> warps;
  const std::function<void()>* thread = nullptr;
  unsigned threads = 0;
  unsigned at_barrier = 0;
  unsigned ended = 0;
  std::jmp_buf scheduler;
  std::minstd_rand draws;
};

Block& block() {
  static Block the_block;
  return the_block;
}

Fiber& self() { return *block().fibers[threadIdx.x]; }

// ucontext makes a fiber; from then on jumps switch, since swapcontext() is a call of the system.
// NOLINTBEGIN(cert-err52-cpp, modernize-avoid-setjmp-longjmp)

/** Until `waits` is over. */
void pause(Waits waits) {
  Fiber& fiber = self();
  fiber.waits = waits;
  if (_setjmp(fiber.place) == 0) std::longjmp(block().scheduler, 1);
}

void live() {
  for (;;) {
    (*block().thread)();
    ++block().ended;
    pause(Waits::for_work);
  }
}

void begin(Fiber& fiber, unsigned number) {
  fiber.begun = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.lowest();
  // Not all at the same place of a page, or they would be in each other's way in the cache.
  context.uc_stack.ss_size = kStackBytes - number % kWarp * 256;
  context.uc_link = nullptr;
  makecontext(&context, live, 0);
  setcontext(&context);
}

void give_turn(unsigned number) {
  threadIdx = {number, 0, 0};
  Fiber& fiber = self();
  if (_setjmp(block().scheduler) != 0) return;
  if (!fiber.begun) begin(fiber, number);
  std::longjmp(fiber.place, 1);
}
// NOLINTEND(cert-err52-cpp, modernize-avoid-setjmp-longjmp)

/** The number in place `at` of `count`, upwards or downwards. */
unsigned in_order(unsigned at, unsigned count, bool upwards) {
  return upwards ? at : count - 1 - at;
}

bool draw() { return (block().draws() & 64U) != 0; }

cudaError_t run_block() {
  Block& b = block();
  b.ended = b.at_barrier = 0;
  for (Warp& warp : b.warps) warp.arrived = 0;
  for (unsigned i = 0; i < b.threads; ++i) {
    b.fibers[i]->waits = Waits::nowhere;
    b.fibers[i]->exchanges = 0;
  }
  for (int round = 0; b.ended < b.threads; ++round) {
    if (round == kMostRounds) return cudaErrorLaunchTimeout;
    bool moved = false;
    const bool upwards = draw();
    for (unsigned i = 0; i < b.threads; ++i) {
      const unsigned number = in_order(i, b.threads, upwards);
      if (b.fibers[number]->waits != Waits::nowhere) continue;
      moved = true;
      give_turn(number);
    }
    if (!moved) return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

}  // namespace

Requests& requests() {
  static Requests since_begin;
  return since_begin;
}

namespace {
std::function<void()>& launch_hook() {
  static std::function<void()> hook;
  return hook;
}
}  // namespace

void set_launch_hook(std::function<void()> hook) { launch_hook() = std::move(hook); }

void note_launch() {
  ++requests().launches;
  if (launch_hook()) launch_hook()();
}

void wait_for_block() {
  Block& b = block();
  if (++b.at_barrier < b.threads) return pause(Waits::for_block);
  b.at_barrier = 0;
  for (unsigned i = 0; i < b.threads; ++i) b.fibers[i]->waits = Waits::nowhere;
}

const Exchange& exchange(unsigned mask, std::uint32_t own) {
  Block& b = block();
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned first = threadIdx.x - lane;
  Warp& warp = b.warps[threadIdx.x / kWarp];
  Exchange& exchange = warp.exchanges[self().exchanges++ % 2];
  exchange.brought[lane] = own;
  const std::uint32_t bit = std::uint32_t{1} << lane;
  exchange.ballot = own != 0 ? exchange.ballot | bit : exchange.ballot & ~bit;
  const bool whole = mask == 0xFFFFFFFFU && first + kWarp <= b.threads;
  if (!whole || ++warp.arrived < kWarp) {
    pause(Waits::for_warp);
  } else {
    warp.arrived = 0;
    for (unsigned i = first; i < first + kWarp; ++i) b.fibers[i]->waits = Waits::nowhere;
  }
  return exchange;
}

cudaError_t run_grid(unsigned blocks, unsigned threads, const std::function<void()>& thread) {
  if (blocks == 0 || threads == 0 || threads > kMostThreads) return cudaErrorInvalidConfiguration;
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  note_launch();
  Block& b = block();
  b.thread = &thread;
  b.threads = threads;
  b.warps.resize((threads + kWarp - 1) / kWarp);
  while (b.fibers.size() < threads) b.fibers.push_back(std::make_unique<Fiber>());
  gridDim = dim3(blocks);
  const bool upwards = draw();
  for (unsigned i = 0; i < blocks; ++i) {
    blockIdx = {in_order(i, blocks, upwards), 0, 0};
    const cudaError_t result = run_block();
    if (result == cudaSuccess) continue;
    b.fibers.clear();  // some are in the middle of something
    return result;
  }
  return cudaSuccess;
}

}  // namespace tutti::on_cpu
