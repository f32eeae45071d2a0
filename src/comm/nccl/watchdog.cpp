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
  since_ = Clock::now().time_since_epoch().count();
  if (!sleeping_) return;
  {
    const std::lock_guard lock(mutex_);
    sleeping_ = false;
    if (!thread_.joinable()) thread_ = std::thread(&Watchdog::run, this);
  }
  woken_.notify_one();
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
    const Clock::rep since = since_;
    ++idle;
    if (since == kNever) continue;
    idle = 0;
    const auto waited = Clock::now() - Clock::time_point(Clock::duration(since));
    if (waited >= kInterval) action_(std::chrono::duration_cast<milliseconds>(waited));
  }
}

}  // namespace tutti::nccl
