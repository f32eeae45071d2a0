// The communicator of which ranks make a part, as their channel sees it while they connect.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/mpi/channel.hpp"
#include "comm/wire.hpp"

namespace tutti::mpi {

/** Its ranks look after it meanwhile, and have its connections. Not thread-safe. */
class Whole {
 public:
  /** Who makes parts at the same time: all ranks of the whole, or some, while others may go on. */
  enum class Makers : std::uint8_t { all, some };

  /** `channel` is the whole's, of which `members` are those of the part, by their ranks there;
   * look() looks after all of its ranks, and throws what it has failed with. These outlive it. */
  Whole(Channel& channel, std::span<const int> members, Makers makers, std::function<void()> look)
      : channel_(channel), members_(members), makers_(makers), look_(std::move(look)) {}

  void look() { use(look_); }
  /** Whether `rank` of the part and this one have a connection in the whole that nothing else uses
   * meanwhile: the same at both. */
  bool connects(int rank) const {
    return makers_ == Makers::all && channel_.has_stream(rank_of(rank), Wire::Traffic::collective);
  }
  /** What Wire::is_fast() says of the whole; nothing if its hosts do not know: the same at all. */
  std::optional<bool> has_fast_wire() const {
    return channel_.knows_wire() ? std::optional(channel_.is_fast()) : std::nullopt;
  }
  /** The whole's rank of one of the part. */
  int rank_of(int rank) const { return members_[static_cast<std::size_t>(rank)]; }
  Channel& channel() { return channel_; }
  /** Does action(), in which the whole may fail. */
  template <class Action>
  void use(const Action& action) {
    has_failed_ = true;
    action();
    has_failed_ = false;
  }
  /** Whether what was thrown is the failure of the whole, and names ranks of it. */
  bool has_failed() const { return has_failed_; }

 private:
  Channel& channel_;
  std::span<const int> members_;
  Makers makers_;
  std::function<void()> look_;
  bool has_failed_ = false;
};

}  // namespace tutti::mpi
