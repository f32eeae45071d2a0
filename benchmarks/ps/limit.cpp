// What memory allows: the cache lines that a table cannot avoid, at places that are known, all by
// one thread.
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <new>
#include <thread>

#include "base/huge_pages.hpp"
#include "comm/shm/memory/flag.hpp"
#include "ps/side.hpp"

namespace tutti::bench {
namespace {

constexpr std::size_t kAhead = 32;  // rows whose cache lines are fetched together

/** Shared memory of one process, in huge pages where a table has them. */
class SharedMemory {
 public:
  explicit SharedMemory(std::int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    data_ = map_aligned(bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1);
    if (data_ == MAP_FAILED) throw std::bad_alloc();
    std::memset(data_, 0, bytes_);
    put_into_huge_pages(static_cast<std::byte*>(data_), bytes / kHugePage * kHugePage);
  }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() { ::munmap(data_, bytes_); }

  float* floats() const { return static_cast<float*>(data_); }

 private:
  std::size_t bytes_;
  void* data_;
};

/** As in an index: where a row lies. */
struct Entry {
  std::int64_t id;
  std::int64_t place;
};

class LimitSide final : public PsSide {
 public:
  explicit LimitSide(const PsLoad& load)
      : load_(load),
        batches_(load),
        index_(load.rows * static_cast<std::int64_t>(sizeof(Entry))),
        rows_(load.rows * load.dim * 4),
        state_(2 * load.rows * load.dim * 4),
        dense_(kDenseElements[1] * 4),
        local_(static_cast<std::size_t>(kDenseElements[1]), 1.0F) {
    auto* entries = reinterpret_cast<Entry*>(index_.floats());
    for (std::int64_t row = 0; row < load.rows; ++row) entries[row] = {row, row};
  }

  std::optional<PsTurn> measure(std::string_view task) override {
    if (task == "lookup") return lookup();
    if (task == "push_sgd") return update(0);
    if (task == "push_adagrad") return update(1);
    if (task == "push_adam") return update(2);
    if (task.starts_with("dense")) return dense(task);
    if (task == "push_ack_asleep") return wake_up();
    return task == "push_ack" ? std::optional(ack()) : std::nullopt;
  }

 private:
  PsTurn lookup() {
    const auto bytes = static_cast<std::size_t>(load_.dim) * 4;
    return walk(0,
                [&](std::int64_t at, float* out) { std::memcpy(out, rows_.floats() + at, bytes); });
  }

  /** Adds to rows and to as much state, whatever lies there. */
  PsTurn update(int states) {
    return walk(states, [&](std::int64_t at, const float* __restrict__ gradient) {
      add(rows_, at, gradient);
      for (std::int64_t i = 0; i < states; ++i) add(state_, states * at + i * load_.dim, gradient);
    });
  }

  void add(const SharedMemory& memory, std::int64_t at, const float* __restrict__ gradient) const {
    float* __restrict__ values = memory.floats() + at;
    for (std::int64_t j = 0; j < load_.dim; ++j) values[j] += gradient[j];
  }

  /** Calls visit(where, other) for each row, after its cache lines were asked for: its entry of the
   * index, and then itself with its state. */
  template <class Visit>
  PsTurn walk(int states, const Visit& visit) {
    const std::int64_t dim = load_.dim;
    const auto* entries = reinterpret_cast<const Entry*>(index_.floats());
    std::vector<float> other(static_cast<std::size_t>(load_.batch * dim), 1.0F);
    const double us = time_calls(load_.seconds, [&] {
      const std::span<const std::int64_t> batch = batches_.rows(batches_.next());
      for (std::size_t first = 0; first < batch.size(); first += kAhead) {
        const std::span<const std::int64_t> some =
            batch.subspan(first, std::min(kAhead, batch.size() - first));
        for (const std::int64_t row : some) __builtin_prefetch(&entries[row]);
        for (const std::int64_t row : some) {
          const std::int64_t at = entries[row].place * dim;
          fetch(rows_, at);
          for (std::int64_t i = 0; i < states; ++i) fetch(state_, states * at + i * dim);
        }
        float* out = &other[first * static_cast<std::size_t>(dim)];
        for (const std::int64_t row : some) {
          visit(entries[row].place * dim, out);
          out += dim;
        }
      }
    });
    return {us, true};
  }

  void fetch(const SharedMemory& memory, std::int64_t at) const {
    for (std::int64_t j = 0; j < load_.dim; j += 16) __builtin_prefetch(memory.floats() + at + j);
  }

  PsTurn dense(std::string_view task) {
    const std::int64_t elements = rows_of(task, load_) * load_.dim;
    float* shared = dense_.floats();
    float* local = local_.data();
    if (task.starts_with("dense_pull")) {
      return {
          time_calls(load_.seconds,
                     [&] { std::memcpy(local, shared, static_cast<std::size_t>(elements) * 4); }),
          true};
    }
    return {time_calls(load_.seconds,
                       [&] {
                         for (std::int64_t i = 0; i < elements; ++i) shared[i] += local[i];
                       }),
            true};
  }

  /** A cache line to another thread and back. */
  PsTurn ack() const {
    std::atomic<int> turn{0};
    std::thread other([&] {
      int expected = 1;
      while (true) {
        const int now = turn.load(std::memory_order_acquire);
        if (now < 0) return;
        if (now != expected) continue;
        turn.store(now + 1, std::memory_order_release);
        expected += 2;
      }
    });
    int now = 0;
    const double us = time_calls(load_.seconds, [&] {
      turn.store(++now, std::memory_order_release);
      ++now;
      while (turn.load(std::memory_order_acquire) != now) {
      }
    });
    turn.store(-1, std::memory_order_release);
    other.join();
    return {us, true};
  }

  /** A futex to another process that sleeps, and another one back. */
  static PsTurn wake_up() {
    static constexpr std::chrono::seconds kLongest{1};
    constexpr std::uint32_t kCalls = 100;
    const SharedMemory memory(4096);
    auto& flags = *new (memory.floats()) std::array<shm::Flag, 2>{};
    shm::Flag& request = flags[0];
    shm::Flag& answer = flags[1];
    const auto wait_for = [](shm::Flag& flag, std::uint32_t value) {
      while (!flag.reached(value)) flag.sleep(value - 1, kLongest);
    };
    const pid_t other = ::fork();
    if (other == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (std::uint32_t call = 1; call <= kCalls; ++call) {
        wait_for(request, call);
        answer.publish(call);
      }
      ::_exit(0);
    }
    std::uint32_t call = 0;
    const double us = time_each(kCalls, 5000, [&] {
      request.publish(++call);
      wait_for(answer, call);
    });
    ::waitpid(other, nullptr, 0);
    return {us, true};
  }

  PsLoad load_;
  PsBatches batches_;
  SharedMemory index_;
  SharedMemory rows_;
  SharedMemory state_;
  SharedMemory dense_;
  std::vector<float> local_;
};

}  // namespace

std::unique_ptr<PsSide> make_limit_side(const PsLoad& load) {
  return std::make_unique<LimitSide>(load);
}

}  // namespace tutti::bench
