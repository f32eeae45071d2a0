// A heap of events, and the turns of fibers.
#include "comm/simulation/scheduler.hpp"

#include <algorithm>
#include <utility>

namespace tutti::simulation {

void Scheduler::push(Time time, Task* task, std::uint64_t what) const {
  events_.push_back({time, ++last_number_, task, what});
  std::push_heap(events_.begin(), events_.end(), IsLater());
}

void Scheduler::wake_at(Task& task, Time time) const {
  task.wakes_ = time;
  push(time, &task, ++task.turn_);
}

Scheduler::Task& Scheduler::start(std::function<void()> body) {
  Task& task = *tasks_.emplace_back(std::make_unique<Task>(std::move(body)));
  ++alive_;
  wake_at(task, now_);
  return task;
}

void Scheduler::at(Time time, std::function<void()> what) {
  if (free_places_.empty()) {
    free_places_.push_back(what_.size());
    what_.emplace_back();
  }
  const std::uint64_t place = free_places_.back();
  free_places_.pop_back();
  what_[place] = std::move(what);
  push(std::max(time, now_), nullptr, place);
}

void Scheduler::happen(std::uint64_t place) {
  const std::function<void()> what = std::exchange(what_[place], nullptr);
  free_places_.push_back(place);
  what();
}

void Scheduler::pass(Duration time, bool may_be_woken) const {
  Task& self = *running_;
  self.may_be_woken_ = may_be_woken;
  wake_at(self, now_ + time);
  self.fiber_.suspend();
}

void Scheduler::sleep(Duration time) const { pass(time, false); }

void Scheduler::sleep_until_woken(Duration longest) { pass(longest, true); }

void Scheduler::wake(Task& task, Duration delay) {
  const Time time = now_ + delay;
  if (task.may_be_woken_ && !task.due_ && time < task.wakes_) wake_at(task, time);
}

void Scheduler::continue_task(Task& task) {
  task.stopped_ = false;
  if (std::exchange(task.due_, false)) wake_at(task, now_);
}

void Scheduler::give_turn(Task& task) {
  if (task.stopped_) {
    task.due_ = true;
    return;
  }
  task.may_be_woken_ = false;
  running_ = &task;
  task.fiber_.resume();
  running_ = nullptr;
  if (task.fiber_.ended()) --alive_;
}

bool Scheduler::run(Time limit) {
  while (alive_ > 0 && !events_.empty() && events_.front().time <= limit) {
    std::pop_heap(events_.begin(), events_.end(), IsLater());
    const Event event = events_.back();
    events_.pop_back();
    const bool is_void = event.task != nullptr && event.what != event.task->turn_;
    if (is_void) continue;
    now_ = event.time;
    if (event.task != nullptr) {
      give_turn(*event.task);
    } else {
      happen(event.what);
    }
  }
  return alive_ == 0;
}

}  // namespace tutti::simulation
