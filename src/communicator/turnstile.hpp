// Lets operations pass one after the other, in the order in which they asked.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
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
  /** A place in the queue. When it is destroyed it is free, whether the operation ran or not. */
  class Place {
   public:
    explicit Place(std::shared_ptr<Turnstile> turnstile) : turnstile_(std::move(turnstile)) {
      const std::lock_guard lock(turnstile_->mutex_);
      number_ = turnstile_->drawn_++;
    }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;
    ~Place() { leave(); }

    /** Blocks until all places in front are free: as long as their operations last. */
    void wait() const {
      std::unique_lock lock(turnstile_->mutex_);
      turnstile_->moved_.wait(lock, [&] { return turnstile_->turn_ == number_; });
    }

    /** Lets the next one pass. */
    void leave() {
      {
        const std::lock_guard lock(turnstile_->mutex_);
        if (std::exchange(left_, true)) return;
        turnstile_->free_.insert(number_);
        while (turnstile_->free_.erase(turnstile_->turn_) != 0) ++turnstile_->turn_;
      }
      turnstile_->moved_.notify_all();
    }

   private:
    std::shared_ptr<Turnstile> turnstile_;
    std::uint64_t number_ = 0;
    bool left_ = false;
  };

 private:
  std::mutex mutex_;
  std::condition_variable moved_;
  std::uint64_t drawn_ = 0;
  std::uint64_t turn_ = 0;
  std::set<std::uint64_t> free_;  // places behind the turn that are free already
};

}  // namespace tutti
