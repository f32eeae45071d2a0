// Virtual time: what happens when, and which fiber has its turn.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "base/time_source.hpp"
#include "comm/simulation/fiber.hpp"

namespace tutti::simulation {

/**
 * Runs fibers one at a time on the thread that calls run(). Nothing that they do takes time: it
 * passes while all of them sleep. What happens at the same time happens in the order in which it
 * was asked for, so that a run is repeatable.
 */
class Scheduler final : public TimeSource {
 public:
  using Duration = Clock::duration;
  using Time = Clock::time_point;

  /** A fiber, and what it sleeps for. */
  class Task {
   public:
    explicit Task(std::function<void()> body) : fiber_(std::move(body)) {}
    bool is_stopped() const { return stopped_; }

   private:
    friend class Scheduler;
    Fiber fiber_;
    std::uint64_t turn_ = 0;    ///< of its turns, the one that is next; older ones are void
    Time wakes_ = Time::max();  ///< when that is
    bool may_be_woken_ = false;
    bool stopped_ = false;
    bool due_ = false;  ///< its turn came while it was stopped
  };

  Time now() const override { return now_; }
  /** By a fiber. */
  void sleep(Duration time) const override;
  /** The same, but wake() may end it. */
  void sleep_until_woken(Duration longest);

  /** Has a fiber run from now on, to its end. */
  Task& start(std::function<void()> body);
  /** `what` happens at `time`, in no fiber. */
  void at(Time time, std::function<void()> what);
  /** Ends the sleep of a task that sleeps until it is woken, after `delay`. */
  void wake(Task& task, Duration delay = {});
  /** It has no turn until continue_task(). */
  void stop(Task& task) { task.stopped_ = true; }
  void continue_task(Task& task);

  /** Until all fibers have ended, whether they have; or until `limit`. */
  bool run(Time limit);

 private:
  /** Small, since a heap moves it often. */
  struct Event {
    Time time;
    std::uint64_t number;
    Task* task;          ///< whose turn it is; null if something else happens
    std::uint64_t what;  ///< the number of the turn, or the place of what happens
  };
  struct IsLater {
    bool operator()(const Event& one, const Event& other) const {
      return one.time != other.time ? one.time > other.time : one.number > other.number;
    }
  };

  void push(Time time, Task* task, std::uint64_t what) const;
  /** What is at that place happens. */
  void happen(std::uint64_t place);
  void give_turn(Task& task);
  void wake_at(Task& task, Time time) const;
  void pass(Duration time, bool may_be_woken) const;

  Time now_{std::chrono::hours(24)};
  mutable std::uint64_t last_number_ = 0;
  mutable std::vector<Event> events_;        // a heap, the next one on top
  std::vector<std::function<void()>> what_;  // what is to happen, by its place
  std::vector<std::uint64_t> free_places_;   // of what_
  std::vector<std::unique_ptr<Task>> tasks_;
  Task* running_ = nullptr;
  std::size_t alive_ = 0;
};

}  // namespace tutti::simulation
