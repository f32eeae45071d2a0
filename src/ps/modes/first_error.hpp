// Several things are tried, whatever becomes of each, and the first error of them is told at the
// end.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "tutti/error.hpp"

namespace tutti::ps {

/** What is neither an Error nor a lack of memory, such as what an InterruptCheck throws, passes:
 * what has been kept stays. */
class FirstError {
 public:
  template <class Action>
  void or_keep(const Action& action) {
    try {
      action();
    } catch (const PeerLost&) {
      knows_of_loss_ = true;
      keep_current();
    } catch (const Error&) {
      keep_current();
    } catch (const std::bad_alloc&) {
      keep_current();
    }
  }
  /** That which is being handled. */
  void keep_current() {
    if (!first_) first_ = std::current_exception();
  }

  /** Whether one of them was a PeerLost. */
  bool knows_of_loss() const { return knows_of_loss_; }
  explicit operator bool() const { return first_ != nullptr; }
  /** Throws it, if there is one: once. */
  void throw_kept() {
    knows_of_loss_ = false;
    if (const std::exception_ptr first = std::exchange(first_, nullptr))
      std::rethrow_exception(first);
  }

 private:
  std::exception_ptr first_;
  bool knows_of_loss_ = false;
};

}  // namespace tutti::ps
