// One rank of each of several hosts, and what of their messages depends on how many they are.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "comm/wire.hpp"

namespace tutti {

/** Calls action(source, target) with all others of `size`, in an order in which no two have the
 * same target at a time. */
template <class Action>
void in_turns(int own, int size, const Action& action) {
  for (int distance = 1; distance < size; ++distance) {
    action((own + size - distance) % size, (own + distance) % size);
  }
}

/**
 * One rank per host, this one among them. Positions are indices into `members`, which are global
 * ranks in the order of the hosts. Their collectives are in the other files of this folder: all
 * block, at most to the wire's deadline; memory is this process's own. Whether members make the
 * same call is for GroupAgreement and Notes; else nothing is checked.
 */
class HostGroup {
 public:
  /** A message to each of so many members takes less time than the steps that would save some. */
  static constexpr int kMostDirect = 32;
  /** From three to so many members agree through the first of them, or tell each other by headers
   * that go before their windows. */
  static constexpr int kMostCentred = Wire::kMostWithoutAhead;
  /** A round between hosts takes as long as this many bytes: more to save one do not pay. */
  static constexpr std::int64_t kSmall = std::int64_t{16} * 1024;

  /** Makes of what members have brought, by position, what those get who want it. */
  using Merge = std::function<void(std::span<const void* const> parts)>;

  /** `wire` outlives it. Only members make calls. */
  HostGroup(Wire& wire, std::vector<int> members)
      : wire_(wire), members_(std::move(members)), position_(position_of(wire.rank())) {}

  Wire& wire() const { return wire_; }
  /** This rank's. */
  int position() const { return position_; }
  int size() const { return static_cast<int>(members_.size()); }
  /** The global rank of member `position`. */
  int member(int position) const { return members_[static_cast<std::size_t>(position)]; }
  /** size() if it is no member. */
  int position_of(int rank) const {
    return static_cast<int>(std::find(members_.begin(), members_.end(), rank) - members_.begin());
  }
  /** The position of the one that comes `distance` behind this one; the first comes behind the
   * last. */
  int peer(int distance) const { return (position_ + distance) % size(); }
  /** Calls action(source, target) with the positions of all others: see tutti::in_turns(). */
  template <class Action>
  void in_turns(const Action& action) const {
    tutti::in_turns(position_, size(), action);
  }

  /** Whether they agree through the first: see kMostCentred. */
  bool is_centred() const { return !Wire::has_ahead(size()); }
  /** Whether they stand in groups for what does not go whole, where there is a way to: see
   * grouped.hpp. */
  bool stand_in_groups() const { return size() > kMostDirect; }
  /** Whether a message is so short that everybody gets all of it at once. */
  bool goes_whole(std::int64_t bytes) const { return bytes * (size() - 1) <= kSmall; }
  /** Whether all have connections: see Wire::passes_on(). */
  bool passes_on() const { return wire_.passes_on(members_); }

 private:
  Wire& wire_;
  std::vector<int> members_;
  int position_;
};

}  // namespace tutti
