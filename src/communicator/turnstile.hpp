// Lets operations pass one after the other, in the order in which they asked.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <set>
#include <utility>

namespace tutti {

/**
 * Operations take a place in the queue when they are called and pass when it is their turn, on
 * whatever thread they run. So the order of the calls is the order on the wire.
 */
class Turnstile {
 public:
  /** A place in the queue. When it is destroyed it is free, whether the operation ran or not. The
   * turnstile outlives it. */
  class Place {
   public:
    explicit Place(Turnstile& turnstile)
        : turnstile_(turnstile), number_(turnstile.drawn_.fetch_add(1)) {}
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { leave(); }

    /** Blocks until all places in front are free: as long as their operations last. */
    void wait() const {
      for (;;) {
        const std::uint32_t turn = turnstile_.turn_.load(std::memory_order_acquire);
        if (turn == number_) return;
        turnstile_.turn_.wait(turn, std::memory_order_acquire);
      }
    }

    /** Lets the next one pass. */
    void leave() {
      if (!std::exchange(left_, true)) turnstile_.free(number_);
    }

   private:
    Turnstile& turnstile_;
    std::uint32_t number_;
    bool left_ = false;
  };

 private:
  void free(std::uint32_t number) {
    {
      const std::lock_guard lock(mutex_);
      std::uint32_t turn = turn_.load(std::memory_order_relaxed);
      if (turn != number) {
        free_.insert(number);
        return;
      }
      ++turn;
      while (!free_.empty() && free_.erase(turn) != 0) ++turn;
      turn_.store(turn, std::memory_order_release);
    }
    turn_.notify_all();
  }

  // 32 bits, that waiting threads can sleep on; they may wrap around.
  std::atomic<std::uint32_t> drawn_ = 0;
  std::atomic<std::uint32_t> turn_ = 0;
  std::mutex mutex_;
  std::set<std::uint32_t> free_;  // places behind the turn that are free already
};

}  // namespace tutti
