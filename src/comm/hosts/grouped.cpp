// Long messages between many hosts: inside groups of them, and between the groups.
#include <algorithm>

#include "comm/hosts/grid.hpp"
#include "comm/hosts/group.hpp"
#include "comm/hosts/partial_sums.hpp"
#include "comm/hosts/pipeline.hpp"

namespace tutti {
namespace {

/** Calls action(source, target) with all others of `size`, in an order in which no two have the
 * same target at a time. */
template <class Action>
void in_turns(int own, int size, const Action& action) {
  for (int distance = 1; distance < size; ++distance) {
    action((own + size - distance) % size, (own + distance) % size);
  }
}

void send(Batch& batch, std::span<const std::byte> part, int rank) {
  batch.send(part.data(), std::ssize(part), rank);
}

void recv(Batch& batch, std::span<std::byte> part, int rank) {
  batch.recv(part.data(), std::ssize(part), rank);
}

/** One host of a grid: which bytes it has to do with in a window, and whose. */
class Member {
 public:
  /** `ranks` are those of the hosts, of which this is number `self`, or none. What is referred to
   * outlives it. */
  Member(std::span<const int> ranks, int self, std::byte* data, const Segments& segments)
      : ranks_(ranks),
        grid_(static_cast<int>(ranks.size())),
        self_(self),
        data_(data),
        segments_(segments) {}

  const Grid& grid() const { return grid_; }
  int group() const { return grid_.group_of(self_); }
  /** Its number in its group, */
  int member() const { return self_ - grid_.begin(group()); }
  /** and of how many. */
  int members() const { return grid_.size_of(group()); }
  int place(std::int64_t window) const { return grid_.place_of(self_, window); }
  int place_of(int member, std::int64_t window) const {
    return grid_.place_of(grid_.begin(group()) + member, window);
  }
  int rank_of(int member) const { return rank_of_host(grid_.begin(group()) + member); }
  int rank_of_holder(int group, int place, std::int64_t window) const {
    return rank_of_host(grid_.holder(group, place, window));
  }
  std::span<std::byte> part(int place, std::int64_t window) const {
    return segments_.part(data_, place, window);
  }

  /** From each holder of the group its part to all members that are `wanted`. */
  template <class Wanted>
  void spread(Batch& batch, std::int64_t window, const Wanted& wanted) const {
    const int own = place(window);
    in_turns(member(), members(), [&](int source, int target) {
      const int theirs = place_of(source, window);
      if (theirs != Grid::kNone && wanted(member())) {
        recv(batch, part(theirs, window), rank_of(source));
      }
      if (own != Grid::kNone && wanted(target)) send(batch, part(own, window), rank_of(target));
    });
  }

 private:
  int rank_of_host(int host) const { return ranks_[static_cast<std::size_t>(host)]; }

  std::span<const int> ranks_;
  Grid grid_;
  int self_;
  std::byte* data_;
  const Segments& segments_;
};

/** The temporary memory of a reduction. */
struct Room {
  static constexpr std::int64_t kLine = HostGroup::kCacheLine;

  int members;  ///< of a group
  int groups;
  std::int64_t depth;    ///< so many windows are under way,
  std::int64_t window;   ///< of at most so many bytes
  std::int64_t widened;  ///< a partial sum is so many times as long as an element

  /** Of a cell, the longest there is, in partial sums. */
  constexpr std::int64_t cell() const {
    return (window + kLine * groups - 1) / (kLine * groups) * kLine * widened;
  }
  constexpr std::int64_t received() const { return depth * members * window; }
  /** One more: a window's partial sums are made before those of another have all arrived. */
  constexpr std::int64_t partials() const { return (depth + 1) * window * widened; }
  constexpr std::int64_t exchanged() const { return depth * groups * cell(); }
  constexpr std::int64_t bytes() const { return received() + partials() + exchanged(); }
};

/** With the longest windows, in whole cache lines, that fit whatever the elements are. */
constexpr Room largest_room(const Grid& grid, std::int64_t depth) {
  constexpr std::int64_t kLine = Room::kLine;
  constexpr std::int64_t kWidened = 2;  // of 16 bits a partial sum has 32
  Room room{grid.largest_group(), grid.groups(), depth, 0, kWidened};
  const std::int64_t lines =
      HostGroup::kMostScratch / kLine - depth * room.groups * kWidened;  // that round cells up
  const std::int64_t windows = depth * room.members + (2 * depth + 1) * kWidened;
  room.window = std::min(lines / windows * kLine, Wire::kPiece);
  return room;
}

/** The four exchanges of a reduction. */
class GroupedReduction {
 public:
  GroupedReduction(const Member& own, ScratchPool& pool, const Room& room, DType dtype,
                   const cpu::Combine& combine)
      : own_(own), room_(room), dtype_(dtype), combine_(combine), memory_(pool, room.bytes()) {}

  /** Every member's contributions to the holders of its group, */
  void contribute(Batch& batch, std::int64_t window) const {
    const int place = own_.place(window);
    in_turns(own_.member(), own_.members(), [&](int source, int target) {
      if (place != Grid::kNone) {
        recv(batch, {received(window, source), own_.part(place, window).size()},
             own_.rank_of(source));
      }
      const int theirs = own_.place_of(target, window);
      if (theirs != Grid::kNone) {
        send(batch, own_.part(theirs, window), own_.rank_of(target));
      }
    });
  }
  /** which add them in the order of the members. */
  void add(std::int64_t window) const {
    const int place = own_.place(window);
    if (place == Grid::kNone) return;
    const auto part = own_.part(place, window);
    RecycledVector<const void*> inputs;
    for (int member = 0; member < own_.members(); ++member) {
      inputs.push_back(member == own_.member() ? part.data() : received(window, member));
    }
    combine_partly(partial(window), inputs, std::ssize(part) / size_of(dtype_), dtype_, combine_);
  }

  /** Each holder's cells to those of the place in the other groups, */
  void exchange(Batch& batch, std::int64_t window) const {
    const int place = own_.place(window);
    if (place == Grid::kNone) return;
    const int group = own_.group();
    in_turns(group, own_.grid().groups(), [&](int source, int target) {
      recv(batch, {exchanged(window, source), partial_cell(window, group).size()},
           own_.rank_of_holder(source, place, window));
      send(batch, partial_cell(window, target), own_.rank_of_holder(target, place, window));
    });
  }
  /** which add them in the order of the groups. */
  void add_partials(std::int64_t window) const {
    if (own_.place(window) == Grid::kNone) return;
    const auto result = cell(window, own_.group());
    const auto partial = partial_cell(window, own_.group());
    RecycledVector<const void*> partials;
    for (int group = 0; group < own_.grid().groups(); ++group) {
      partials.push_back(group == own_.group() ? partial.data() : exchanged(window, group));
    }
    combine_partials(result.data(), partials, std::ssize(result) / size_of(dtype_), dtype_,
                     combine_);
  }

  /** Each holder's result to those of the place in the groups that are `wanted`. */
  template <class Wanted>
  void give_back(Batch& batch, std::int64_t window, const Wanted& wanted) const {
    const int place = own_.place(window);
    if (place == Grid::kNone) return;
    const int group = own_.group();
    in_turns(group, own_.grid().groups(), [&](int source, int target) {
      if (wanted(group)) {
        recv(batch, cell(window, source), own_.rank_of_holder(source, place, window));
      }
      if (wanted(target)) {
        send(batch, cell(window, group), own_.rank_of_holder(target, place, window));
      }
    });
  }

 private:
  std::byte* received(std::int64_t window, int member) const {
    return memory_.data() + (window % room_.depth * room_.members + member) * room_.window;
  }
  std::byte* partial(std::int64_t window) const {
    return memory_.data() + room_.received() +
           window % (room_.depth + 1) * room_.window * room_.widened;
  }
  std::byte* exchanged(std::int64_t window, int group) const {
    return memory_.data() + room_.received() + room_.partials() +
           (window % room_.depth * room_.groups + group) * room_.cell();
  }
  /** What the holder in `group` adds of this one's part, in units of `line` bytes. */
  std::span<std::byte> cell_of(std::span<std::byte> part, int group, std::int64_t line) const {
    const std::int64_t lines = (std::ssize(part) + line - 1) / line;
    const std::int64_t length = (lines + room_.groups - 1) / room_.groups * line;
    const std::int64_t begin = std::min(group * length, std::ssize(part));
    const std::int64_t end = std::min(begin + length, std::ssize(part));
    return part.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }
  std::span<std::byte> cell(std::int64_t window, int group) const {
    return cell_of(own_.part(own_.place(window), window), group, Room::kLine);
  }
  std::span<std::byte> partial_cell(std::int64_t window, int group) const {
    const auto length = own_.part(own_.place(window), window).size();
    return cell_of({partial(window), length * static_cast<std::size_t>(room_.widened)}, group,
                   Room::kLine * room_.widened);
  }

  const Member& own_;
  Room room_;
  DType dtype_;
  cpu::Combine combine_;
  Scratch memory_;
};

}  // namespace

Segments HostGroup::grouped_segments(std::int64_t bytes, int hosts) {
  static_assert(largest_room(Grid(4096), kGroupedUnderWay).bytes() <= kMostScratch);
  static_assert(largest_room(Grid(4095), kGroupedUnderWay).bytes() <= kMostScratch);
  // A window of each place together is long enough for the ranks of a host to meet for it.
  constexpr std::int64_t kSegmentWindows = 1;
  const Grid grid(hosts);
  return {bytes, grid.places(), largest_room(grid, kGroupedUnderWay).window, kSegmentWindows,
          kCacheLine};
}

void HostGroup::reduce_grouped(std::byte* data, const Segments& segments, DType dtype,
                               const cpu::Combine& combine, int receivers,
                               const SegmentCalls& calls) {
  const Member own(members_, position_, data, segments);
  const Grid& grid = own.grid();
  const Room room{own.members(), grid.groups(), kGroupedUnderWay, segments.longest_part(),
                  size_of(partial_type(dtype)) / size_of(dtype)};
  const GroupedReduction reduction(own, wire_.scratch(), room, dtype, combine);
  const bool for_all = receivers == kEverybody;
  const auto gets = [&](int member) {
    return for_all || grid.begin(own.group()) + member == receivers;
  };
  const auto group_gets = [&](int group) { return for_all || group == grid.group_of(receivers); };
  run_pipeline(
      wire_, segments.windows(), kGroupedUnderWay,
      PipelineStep{[&](Batch& batch, std::int64_t window) {
                     calls.before(window);
                     reduction.contribute(batch, window);
                   },
                   [&](std::int64_t window) { reduction.add(window); }},
      PipelineStep{[&](Batch& batch, std::int64_t window) { reduction.exchange(batch, window); },
                   [&](std::int64_t window) { reduction.add_partials(window); }},
      PipelineStep{[&](Batch& batch, std::int64_t window) {
                     reduction.give_back(batch, window, group_gets);
                   },
                   kNothing},
      PipelineStep{[&](Batch& batch, std::int64_t window) { own.spread(batch, window, gets); },
                   [&](std::int64_t window) { calls.after(window); }});
}

void HostGroup::broadcast_grouped(std::byte* data, std::int64_t bytes, int root) {
  // A window of each place together is long: with more of them under way, the last host would get
  // the first when the root has sent the most of a message.
  constexpr std::int64_t kDepth = 2;
  RecycledVector<int> others;  // the root only gives, and is in no group
  for (int member = 0; member < size(); ++member) {
    if (member != root) others.push_back(members_[static_cast<std::size_t>(member)]);
  }
  const Segments segments = grouped_segments(bytes, size() - 1);
  const Member own(others, position_ - (position_ > root ? 1 : 0), data, segments);
  const Grid& grid = own.grid();
  // Groups take turns to get a window first.
  const auto first_group = [&](std::int64_t window) {
    return static_cast<int>(window % grid.groups());
  };
  const int root_rank = members_[static_cast<std::size_t>(root)];

  if (position_ == root) {
    const auto give = [&](Batch& batch, std::int64_t window) {
      for (int place = 0; place < grid.places(); ++place) {
        send(batch, own.part(place, window),
             own.rank_of_holder(first_group(window), place, window));
      }
    };
    return run_pipeline(wire_, segments.windows(), kDepth, PipelineStep{give, kNothing});
  }
  const auto take = [&](Batch& batch, std::int64_t window) {
    const int place = own.place(window);
    if (place != Grid::kNone && own.group() == first_group(window)) {
      recv(batch, own.part(place, window), root_rank);
    }
  };
  const auto pass_on = [&](Batch& batch, std::int64_t window) {
    const int place = own.place(window);
    if (place == Grid::kNone) return;
    const int from = first_group(window);
    if (own.group() != from) {
      return recv(batch, own.part(place, window), own.rank_of_holder(from, place, window));
    }
    in_turns(from, grid.groups(), [&](int, int target) {
      send(batch, own.part(place, window), own.rank_of_holder(target, place, window));
    });
  };
  const auto spread = [&](Batch& batch, std::int64_t window) {
    own.spread(batch, window, [](int) { return true; });
  };
  run_pipeline(wire_, segments.windows(), kDepth, PipelineStep{take, kNothing},
               PipelineStep{pass_on, kNothing}, PipelineStep{spread, kNothing});
}

}  // namespace tutti
