// Which check counts for which thread.
#include "tutti/interrupt.hpp"

#include <utility>

namespace tutti {
namespace {

/** Waits are far below the call that wants to look; what they share with it is the thread. */
InterruptCheck*& innermost() {
  thread_local InterruptCheck* check = nullptr;
  return check;
}

}  // namespace

InterruptCheck::InterruptCheck(std::function<void()> look)
    : look_(std::move(look)),
      next_(Clock::now() + kInterval),
      outer_(std::exchange(innermost(), this)) {}

InterruptCheck::~InterruptCheck() { innermost() = outer_; }

bool InterruptCheck::active() { return innermost() != nullptr; }

void InterruptCheck::poll() {
  InterruptCheck* const check = innermost();
  if (check == nullptr) return;
  const Clock::time_point now = Clock::now();
  if (now < check->next_) return;
  check->next_ = now + kInterval;
  check->look_();
}

}  // namespace tutti
