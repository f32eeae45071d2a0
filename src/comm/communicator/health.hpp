// Whether a communicator can go on, for all who ask, also when it is gone.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

namespace tutti {

/** Shared by a communicator and the events of its work on a GPU, which outlive it. Any thread. */
class Health {
 public:
  bool is_broken() const { return broken_; }

  /** Throws what break_with() was given first. */
  void refuse_if_broken() const;

  /**
   * What every further call throws, from now on; whether this is the first break. The first stays:
   * two calls may be under way at once, and the one that starts second must not hide what the first
   * has found.
   */
  template <class Refusal>
  bool break_with(const Refusal& refusal) {
    const std::lock_guard lock(mutex_);
    if (broken_) return false;
    refusal_ = std::make_exception_ptr(refusal);
    broken_ = true;
    return true;
  }
  /** The same where memory is short: without a reason. */
  bool break_silently() noexcept { return !broken_.exchange(true); }

 private:
  std::atomic<bool> broken_ = false;
  mutable std::mutex mutex_;
  std::exception_ptr refusal_;
};

}  // namespace tutti
