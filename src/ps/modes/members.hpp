// The workers as a server sees them: who lives, and how far each is.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tutti::ps {

class Members {
 public:
  explicit Members(std::size_t workers) : workers_(workers) {}

  int at_start() const { return static_cast<int>(workers_.size()); }
  int living() const {
    return static_cast<int>(std::ranges::count(workers_, true, &Worker::lives));
  }
  bool lives(int worker) const { return at(worker).lives; }
  /** The lowest that lives; -1: none does. */
  int lowest() const {
    return first([](const Worker& worker) { return worker.lives; });
  }
  void remove(int worker) { at(worker).lives = false; }

  /** Steps that a worker has ended. */
  std::int64_t rounds(int worker) const { return at(worker).rounds; }
  void set_rounds(int worker, std::int64_t rounds) { at(worker).rounds = rounds; }
  /** Steps that all who live have ended. */
  std::int64_t slowest() const { return least(&Worker::rounds); }

  /** A worker has come to its next barrier; returns its number, from 1 on. */
  std::int64_t enter_barrier(int worker) { return ++at(worker).barriers; }
  /** It waits there no longer. */
  void leave_barrier(int worker) { --at(worker).barriers; }
  std::int64_t barriers(int worker) const { return at(worker).barriers; }
  /** Barriers that all who live have come to. */
  std::int64_t barriers_passed() const { return least(&Worker::barriers); }

 private:
  struct Worker {
    bool lives = true;
    std::int64_t rounds = 0;
    std::int64_t barriers = 0;
  };
  const Worker& at(int worker) const { return workers_[static_cast<std::size_t>(worker)]; }
  Worker& at(int worker) { return workers_[static_cast<std::size_t>(worker)]; }

  template <class Condition>
  int first(const Condition& condition) const {
    const auto found = std::ranges::find_if(workers_, condition);
    return found == workers_.end() ? -1 : static_cast<int>(found - workers_.begin());
  }
  std::int64_t least(std::int64_t Worker::*count) const {
    std::int64_t least = -1;
    for (const Worker& worker : workers_) {
      if (worker.lives && (least < 0 || worker.*count < least)) least = worker.*count;
    }
    return std::max<std::int64_t>(least, 0);
  }

  std::vector<Worker> workers_;
};

}  // namespace tutti::ps
