// The communicators of this process, through all of which a rank shows that it is alive.
#pragma once

#include <mutex>
#include <vector>

namespace tutti::shm {

class LocalGroup;

/**
 * While a rank waits in one communicator, its peers of another may be waiting for it: they must see
 * that it is alive, and whom it waits for. So every LocalGroup of a process is entered here as long
 * as it lives. Safe from any thread.
 */
class GroupRegistry {
 public:
  static GroupRegistry& of_this_process();

  void add(LocalGroup* group);
  void remove(LocalGroup* group);
  /** action(LocalGroup&) on all, none of which ends meanwhile. */
  template <class Action>
  void for_each(const Action& action) {
    const std::lock_guard lock(mutex_);
    for (LocalGroup* group : groups_) action(*group);
  }

 private:
  GroupRegistry();
  void leave_at_exit() noexcept;

  std::mutex mutex_;
  std::vector<LocalGroup*> groups_;
  bool leaves_at_exit_ = false;
};

}  // namespace tutti::shm
