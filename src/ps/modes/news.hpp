// What servers say of other workers and of checkpoints when a round ends.
#pragma once

#include <cstdint>
#include <mutex>
#include <set>
#include <vector>

#include "ps/link/link.hpp"

namespace tutti::ps {

/** Thread-safe. */
class News {
 public:
  explicit News(int servers);

  /** Takes in the reply of a server to end_round. Throws Error for one that is none. */
  void hear(int server, const Reply& reply);

  /** Steps that all workers that live have ended, as far as is known. */
  std::int64_t slowest() const;
  std::vector<int> lost_workers() const;
  /** A checkpoint is asked for: once for each time that a server has asked. */
  bool take_save_due();

 private:
  mutable std::mutex mutex_;
  std::vector<RoundReply> last_;  // of each server
  std::set<int> lost_;
  bool save_due_ = false;
};

}  // namespace tutti::ps
