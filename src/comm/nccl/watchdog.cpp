// Looks after a call that may not return.
#include "comm/nccl/watchdog.hpp"

#include <utility>

namespace tutti::nccl {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kInterval{50};
constexpr int kIdleRounds = 20;  // until it sleeps

}  // namespace

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  woken_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::enter() {
  if (!thread_.joinable()) thread_ = std::thread(&Watchdog::run, this);  // or there is no call
  since_ = Clock::now().time_since_epoch().count();
  if (!sleeping_) return;
  {
    const std::lock_guard lock(mutex_);
    sleeping_ = false;
  }
  woken_.notify_one();
}

void Watchdog::leave() {
  const Clock::time_point since{Clock::duration(since_.exchange(kNever))};
  if (Clock::now() - since < kInterval) return;
  const std::lock_guard until_it_has_looked(looking_);
}

void Watchdog::run() {
  int idle = 0;
  for (;;) {
    {
      std::unique_lock lock(mutex_);
      if (idle >= kIdleRounds) {
        sleeping_ = true;
        // A call that has begun before it could see that is looked after.
        if (since_ == kNever) woken_.wait(lock, [&] { return closing_ || !sleeping_; });
        sleeping_ = false;
        idle = 0;
      }
      woken_.wait_for(lock, kInterval, [&] { return closing_; });
      if (closing_) return;
    }
    idle = look() ? 0 : idle + 1;
  }
}

bool Watchdog::look() {
  const std::lock_guard lock(looking_);
  const auto now = Clock::now();  // before the call is seen: then leave() finds it as old as this
  const Clock::rep since = since_;
  if (since == kNever) return false;
  const auto waited = now - Clock::time_point(Clock::duration(since));
  if (waited >= kInterval) action_(std::chrono::duration_cast<milliseconds>(waited));
  return true;
}

}  // namespace tutti::nccl
