// A ticket lock: operations pass one after the other, in the order in which they asked.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "base/recycled.hpp"
#include "base/waiter.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {

/**
 * Operations take a place in the queue when they are called and pass when it is their turn, on
 * whatever thread they run. So the order of the calls is the order on the wire.
 */
class TicketLock {
 public:
  /** A place in the queue. When it is destroyed it is free, whether the operation ran or not. The
   * lock outlives it. */
  class Place {
   public:
    explicit Place(TicketLock& lock) : lock_(lock), number_(lock.drawn_.fetch_add(1)) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { leave(); }

    /** Blocks until all places in front are free: as long as their operations last. */
    void wait() const {
      for (Waiter waiter(kPolicy);;) {
        const std::uint32_t turn = lock_.turn_.load(std::memory_order_acquire);
        if (turn == number_) return;
        waiter.nap([&](Waiter::Duration limit) {
          if (InterruptCheck::active()) {
            std::this_thread::sleep_for(limit);
          } else {  // the kernel's wait has no limit
            lock_.turn_.wait(turn, std::memory_order_acquire);
          }
        });
      }
    }

    /** Lets the next one pass. */
    void leave() {
      if (!std::exchange(left_, true)) lock_.free(number_);
    }

   private:
    TicketLock& lock_;
    std::uint32_t number_;
    bool left_ = false;
  };

 private:
  static constexpr WaitPolicy kPolicy{.nap = std::chrono::microseconds(50)};

  void free(std::uint32_t number) {
    if (turn_.load(std::memory_order_relaxed) == number) {
      turn_.store(number + 1, std::memory_order_seq_cst);
      // Either this sees the place behind, or that one sees that it is its turn.
      if (early_.load(std::memory_order_seq_cst) != 0) skip_early();
    } else {
      {
        const std::lock_guard lock(mutex_);
        free_.insert(number);
      }
      early_.fetch_add(1, std::memory_order_seq_cst);
      skip_early();
    }
    turn_.notify_all();
  }

  /** Passes over places that are free already. */
  void skip_early() {
    const std::lock_guard lock(mutex_);
    std::uint32_t turn = turn_.load(std::memory_order_seq_cst);
    while (free_.erase(turn) != 0) {
      early_.fetch_sub(1, std::memory_order_relaxed);
      turn_.store(++turn, std::memory_order_seq_cst);
    }
  }

  // 32 bits, that waiting threads can sleep on; they may wrap around.
  std::atomic<std::uint32_t> drawn_ = 0;
  std::atomic<std::uint32_t> turn_ = 0;
  std::atomic<std::uint32_t> early_ = 0;  // places behind the turn that are free already
  std::mutex mutex_;
  std::set<std::uint32_t, std::less<>, RecyclingAllocator<std::uint32_t>> free_;
};

}  // namespace tutti
