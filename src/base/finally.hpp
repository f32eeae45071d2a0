// What is done at the end of a scope, however it ends.
#pragma once

#include <utility>

namespace tutti {

template <class Action>
class Finally {
 public:
  /** `action` does not throw. */
  explicit Finally(Action action) : action_(std::move(action)) {}
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;
  ~Finally() { action_(); }

 private:
  Action action_;
};

}  // namespace tutti
