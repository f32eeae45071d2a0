// Enters who waits, and forgets it.
#include "comm/own_waits.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "base/system.hpp"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kFreshFor{1};
constexpr std::chrono::milliseconds kQuiet{10};
// Waits inside a host enter themselves every 50 ms; a thread that was not seen for so long waits no
// more.
constexpr std::chrono::milliseconds kStale{500};
constexpr std::size_t kMostThreads = 16;  // more of them cost memory

}  // namespace

OwnWaits& OwnWaits::of_this_process() {
  static auto* const waits = new OwnWaits;  // communicators of static objects may end later
  return *waits;
}

/** A thread of a process that forks must not leave the child with a lock that nobody holds. */
OwnWaits::OwnWaits() : time_(TimeSource::system()) {
  give_block(take_block(1), 1);  // the free lists' lock is taken under this one: see WaitGraph
  entries_.reserve(kMostThreads);
  ::pthread_atfork([] { of_this_process().mutex_.lock(); },
                   [] { of_this_process().mutex_.unlock(); },
                   [] { of_this_process().mutex_.unlock(); });
}

OwnWaits::OwnWaits(const TimeSource& time, ProcessNumber number)
    : time_(time), number_(number), numbered_process_(::getpid()) {}

ProcessNumber OwnWaits::number() {
  const std::lock_guard lock(mutex_);
  if (numbered_process_ != ::getpid()) {
    fill_with_random(std::as_writable_bytes(std::span(&number_, 1)), "the number of a process");
    number_ |= kFirstProcessNumber;
    numbered_process_ = ::getpid();
  }
  return number_;
}

bool OwnWaits::enter(std::span<const ProcessNumber> processes) {
  const std::lock_guard lock(mutex_);
  const auto now = time_.now();
  const auto self = std::this_thread::get_id();
  auto own = std::find_if(entries_.begin(), entries_.end(),
                          [&](const Entry& entry) { return entry.thread == self; });
  if (own == entries_.end()) own = entries_.insert(own, {self, {}, now - kStale});
  if (now - own->seen < kFreshFor) return false;
  own->seen = now;
  last_entry_ = now;
  own->processes.assign(processes.begin(), processes.end());
  std::erase_if(entries_, [&](const Entry& entry) { return now - entry.seen > kStale; });
  return true;
}

void OwnWaits::forget() noexcept {
  const std::lock_guard lock(mutex_);
  const auto self = std::this_thread::get_id();
  std::erase_if(entries_, [&](const Entry& entry) { return entry.thread == self; });
}

bool OwnWaits::are_quiet() const noexcept { return time_.now() - last_entry_.load() > kQuiet; }

RecycledVector<ProcessNumber> OwnWaits::awaited() {
  const std::lock_guard lock(mutex_);
  RecycledVector<ProcessNumber> processes;
  const auto now = time_.now();
  for (const Entry& entry : entries_) {
    if (now - entry.seen > kStale) continue;
    processes.insert(processes.end(), entry.processes.begin(), entry.processes.end());
  }
  std::sort(processes.begin(), processes.end());
  processes.erase(std::unique(processes.begin(), processes.end()), processes.end());
  std::erase(processes, number_);
  return processes;
}

}  // namespace tutti
