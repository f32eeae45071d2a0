// How many hosts stand in groups, and which of them work on what.
#pragma once

#include <cstdint>

namespace tutti {

/**
 * Hosts in groups, one after the other, whose sizes differ by at most one. Of what is cut in
 * windows, each group has a holder for each of `places()` shares; the holders of one share in all
 * groups work on it together. A group with a host more than places has a host without one: window
 * by window it is another, so all have as much to do.
 */
class Grid {
 public:
  static constexpr int kNone = -1;

  /** A group has about four times as many members as there are groups: between groups a window
   * travels in as many parts as there are groups, which are not to be too short. */
  constexpr explicit Grid(int hosts) : hosts_(hosts) {
    while (4 * (groups_ + 1) * (groups_ + 1) <= hosts) ++groups_;
  }

  constexpr int groups() const { return groups_; }
  constexpr int places() const { return hosts_ / groups_; }
  constexpr int largest_group() const { return (hosts_ + groups_ - 1) / groups_; }

  /** The first host of a group; of group groups() it is the end. */
  constexpr int begin(int group) const {
    return static_cast<int>(std::int64_t{group} * hosts_ / groups_);
  }
  constexpr int size_of(int group) const { return begin(group + 1) - begin(group); }
  constexpr int group_of(int host) const {
    return static_cast<int>(((std::int64_t{host} + 1) * groups_ - 1) / hosts_);
  }

  /** The host that has `place` in `group` for window `window`. */
  constexpr int holder(int group, int place, std::int64_t window) const {
    return begin(group) + place + (place >= without_place(group, window) ? 1 : 0);
  }
  /** The place of `host` then, or kNone. */
  constexpr int place_of(int host, std::int64_t window) const {
    const int group = group_of(host);
    const int member = host - begin(group);
    const int without = without_place(group, window);
    return member == without ? kNone : member - (member > without ? 1 : 0);
  }

 private:
  /** The member of a group that has no place for a window. */
  constexpr int without_place(int group, std::int64_t window) const {
    const int size = size_of(group);
    return size > places() ? static_cast<int>(window % size) : size;
  }

  int hosts_;
  int groups_ = 1;
};

}  // namespace tutti
