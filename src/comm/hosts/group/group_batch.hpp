// Messages among the members of a group, by their positions.
#pragma once

#include <cstddef>
#include <iterator>
#include <span>

#include "comm/batch.hpp"
#include "comm/hosts/group/group.hpp"

namespace tutti {

/** A Batch that knows members by their positions, not by their ranks. */
class GroupBatch : private Batch {
 public:
  /** `group` outlives it. */
  GroupBatch(const HostGroup& group, Wire::Traffic traffic)
      : Batch(group.wire(), traffic), group_(group) {}

  /** These are those of Batch, of whole parts. */
  void send(std::span<const std::byte> part, int position) {
    Batch::send(part.data(), std::ssize(part), rank_of(position));
  }
  void recv(std::span<std::byte> part, int position) {
    Batch::recv(part.data(), std::ssize(part), rank_of(position));
  }
  void pass_on(std::span<std::byte> part, int source, int target) {
    Batch::pass_on(part.data(), std::ssize(part), rank_of(source), rank_of(target));
  }
  void withdraw(int source) { Batch::withdraw(rank_of(source)); }
  /** A position, too. */
  int last_source() const { return group_.position_of(Batch::last_source()); }
  /** `received` is told positions: see Batch::wait_until(). No more is captured here than
   * std::function holds without memory of its own. */
  template <class Received>
  void wait_until(const Received& received) {
    Batch::wait_until([&](int source) { return received(group_.position_of(source)); });
  }
  using Batch::keep;
  using Batch::progress;
  using Batch::wait;

 private:
  int rank_of(int position) const { return group_.member(position); }

  const HostGroup& group_;
};

}  // namespace tutti
