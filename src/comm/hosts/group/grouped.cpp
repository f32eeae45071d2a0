// Exchanges in a grid of hosts, window by window.
#include "comm/hosts/group/grouped.hpp"

#include <algorithm>
#include <optional>

#include "base/recycled.hpp"
#include "comm/hosts/group/grid.hpp"
#include "comm/hosts/group/partial_sums.hpp"
#include "comm/hosts/group/shards.hpp"

namespace tutti {
namespace {

/** One host of a grid: which bytes it has to do with in a window, and whose. */
class Member {
 public:
  /** The hosts are those of `hosts` but for the one at `left_out`, which may be this one. What is
   * referred to outlives it. */
  Member(const HostGroup& hosts, std::optional<int> left_out, std::byte* data,
         const Segments& segments)
      : left_out_(left_out.value_or(hosts.size())),
        grid_(left_out ? hosts.size() - 1 : hosts.size()),
        self_(hosts.position() - (hosts.position() > left_out_ ? 1 : 0)),
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
  int position_of(int member) const { return position_of_host(grid_.begin(group()) + member); }
  int position_of_holder(int group, int place, std::int64_t window) const {
    return position_of_host(grid_.holder(group, place, window));
  }
  std::span<std::byte> part(int place, std::int64_t window) const {
    return segments_.part(data_, place, window);
  }

  /** From each holder of the group its part to all members that are `wanted`. */
  template <class Wanted>
  void spread(GroupBatch& batch, std::int64_t window, const Wanted& wanted) const {
    const int own = place(window);
    in_turns(member(), members(), [&](int source, int target) {
      const int theirs = place_of(source, window);
      if (theirs != Grid::kNone && wanted(member())) {
        batch.recv(part(theirs, window), position_of(source));
      }
      if (own != Grid::kNone && wanted(target)) batch.send(part(own, window), position_of(target));
    });
  }

 private:
  int position_of_host(int host) const { return host + (host >= left_out_ ? 1 : 0); }

  int left_out_;  // behind all hosts if it is nobody
  Grid grid_;
  int self_;
  std::byte* data_;
  const Segments& segments_;
};

/** The temporary memory of a reduction. */
struct Room {
  static constexpr std::int64_t kLine = Shards::kCacheLine;

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
      kMostScratch / kLine - depth * room.groups * kWidened;  // that round cells up
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
  void contribute(GroupBatch& batch, std::int64_t window) const {
    const int place = own_.place(window);
    in_turns(own_.member(), own_.members(), [&](int source, int target) {
      if (place != Grid::kNone) {
        batch.recv({received(window, source), own_.part(place, window).size()},
                   own_.position_of(source));
      }
      const int theirs = own_.place_of(target, window);
      if (theirs != Grid::kNone) {
        batch.send(own_.part(theirs, window), own_.position_of(target));
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
  void exchange(GroupBatch& batch, std::int64_t window) const {
    const int place = own_.place(window);
    if (place == Grid::kNone) return;
    const int group = own_.group();
    in_turns(group, own_.grid().groups(), [&](int source, int target) {
      batch.recv({exchanged(window, source), partial_cell(window, group).size()},
                 own_.position_of_holder(source, place, window));
      batch.send(partial_cell(window, target), own_.position_of_holder(target, place, window));
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
  void give_back(GroupBatch& batch, std::int64_t window, const Wanted& wanted) const {
    const int place = own_.place(window);
    if (place == Grid::kNone) return;
    const int group = own_.group();
    in_turns(group, own_.grid().groups(), [&](int source, int target) {
      if (wanted(group)) {
        batch.recv(cell(window, source), own_.position_of_holder(source, place, window));
      }
      if (wanted(target)) {
        batch.send(cell(window, group), own_.position_of_holder(target, place, window));
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

Segments grouped_segments(std::int64_t bytes, int hosts) {
  static_assert(largest_room(Grid(4096), kGroupedUnderWay).bytes() <= kMostScratch);
  static_assert(largest_room(Grid(4095), kGroupedUnderWay).bytes() <= kMostScratch);
  // A window of each place together is long enough for the ranks of a host to meet for it.
  constexpr std::int64_t kWindows = 1;
  const Grid grid(hosts);
  return {bytes, grid.places(), largest_room(grid, kGroupedUnderWay).window, kWindows,
          Shards::kCacheLine};
}

void reduce_grouped(const HostGroup& hosts, std::byte* data, DType dtype,
                    const cpu::Combine& combine, std::optional<int> root,
                    const SegmentCalls& calls) {
  const Member own(hosts, std::nullopt, data, calls.segments);
  const Grid& grid = own.grid();
  const Room room{own.members(), grid.groups(), kGroupedUnderWay, calls.segments.longest_part(),
                  size_of(partial_type(dtype)) / size_of(dtype)};
  const GroupedReduction reduction(own, hosts.wire().scratch(), room, dtype, combine);
  const auto gets = [&](int member) { return !root || grid.begin(own.group()) + member == *root; };
  const auto group_gets = [&](int group) { return !root || group == grid.group_of(*root); };
  run_pipeline(
      hosts, calls.segments.windows(), kGroupedUnderWay,
      PipelineStep{[&](GroupBatch& batch, std::int64_t window) {
                     calls.before(window);
                     reduction.contribute(batch, window);
                   },
                   [&](std::int64_t window) { reduction.add(window); }},
      PipelineStep{
          [&](GroupBatch& batch, std::int64_t window) { reduction.exchange(batch, window); },
          [&](std::int64_t window) { reduction.add_partials(window); }},
      PipelineStep{[&](GroupBatch& batch, std::int64_t window) {
                     reduction.give_back(batch, window, group_gets);
                   },
                   kNothing},
      PipelineStep{[&](GroupBatch& batch, std::int64_t window) { own.spread(batch, window, gets); },
                   [&](std::int64_t window) { calls.after(window); }});
}

void broadcast_grouped(const HostGroup& hosts, int root, std::byte* data, std::int64_t bytes) {
  // A window of each place together is long: with more of them under way, the last host would get
  // the first when the root has sent the most of a message.
  constexpr std::int64_t kDepth = 2;
  const Segments segments = grouped_segments(bytes, hosts.size() - 1);
  const Member own(hosts, root, data, segments);  // the root only gives, and is in no group
  const Grid& grid = own.grid();
  // Groups take turns to get a window first.
  const auto first_group = [&](std::int64_t window) {
    return static_cast<int>(window % grid.groups());
  };

  if (hosts.position() == root) {
    const auto give = [&](GroupBatch& batch, std::int64_t window) {
      for (int place = 0; place < grid.places(); ++place) {
        batch.send(own.part(place, window),
                   own.position_of_holder(first_group(window), place, window));
      }
    };
    return run_pipeline(hosts, segments.windows(), kDepth, PipelineStep{give, kNothing});
  }
  const auto take = [&](GroupBatch& batch, std::int64_t window) {
    const int place = own.place(window);
    if (place != Grid::kNone && own.group() == first_group(window)) {
      batch.recv(own.part(place, window), root);
    }
  };
  const auto pass_on = [&](GroupBatch& batch, std::int64_t window) {
    const int place = own.place(window);
    if (place == Grid::kNone) return;
    const int from = first_group(window);
    if (own.group() != from) {
      return batch.recv(own.part(place, window), own.position_of_holder(from, place, window));
    }
    in_turns(from, grid.groups(), [&](int, int target) {
      batch.send(own.part(place, window), own.position_of_holder(target, place, window));
    });
  };
  const auto spread = [&](GroupBatch& batch, std::int64_t window) {
    own.spread(batch, window, [](int) { return true; });
  };
  run_pipeline(hosts, segments.windows(), kDepth, PipelineStep{take, kNothing},
               PipelineStep{pass_on, kNothing}, PipelineStep{spread, kNothing});
}

}  // namespace tutti
