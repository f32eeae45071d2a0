// The ways in which a task's data move, for tasks of which each rank takes some of the others'
// inputs.
#include <algorithm>
#include <cstddef>

#include "base/memory.hpp"
#include "comm/shm/pipeline.hpp"

namespace tutti::shm {

/** One row a kind of task, one column a way: one shot, direct, staged, single copy. */
const Local::Ways& Local::ways_of(TaskKind kind) {
  static constexpr Ways kTaking{&Local::reach, &Local::reach, &Local::relay, &Local::pull};
  static constexpr Ways kAllReduce{&Local::reach, &Local::reduce_in_place, &Local::reduce_in_pieces,
                                   &Local::reduce_copies};
  return kind == TaskKind::all_reduce ? kAllReduce : kTaking;
}

View Local::place_of(const Task& task, int giver) const {
  const std::int64_t offset = task.kind == TaskKind::spread ? 0 : task.begin_of(giver);
  return task.out.part(offset, task.count_of(giver));
}

void Local::take_own(const Task& task) const {
  const bool takes = task.takes(rank()) || task.root == rank();
  if (!takes || !task.gives(rank())) return;
  const View place = place_of(task, rank());
  copy_bytes(place.data, task.in.part(offset_in(task), 0).data, place.bytes());
}

void Local::take(const Task& task, std::int64_t begin, std::int64_t count, bool streamed) {
  if (task.combines()) {
    void* target = task.out.part(begin, count).data;
    const std::int64_t length = std::clamp<std::int64_t>(own_count(task) - begin, 0, count);
    return cpu::reduce(std::span(&target, 1), inputs_, length, task.dtype, task.combine);
  }
  for (int giver = 0; giver < size(); ++giver) {
    if (giver == rank() || !task.gives(giver)) continue;
    const View place = place_of(task, giver);
    const std::int64_t length = std::clamp<std::int64_t>(place.count - begin, 0, count);
    cpu::copy(place.part(begin, 0).data, inputs_[static_cast<std::size_t>(giver)],
              length * task.width(), streamed);
  }
}

/** Inputs that can be read where they are: they came with the ranks, or lie in symmetric memory. */
void Local::reach(const Task& task) {
  if (met_.line && task.kind == TaskKind::all_reduce) return reduce_lines(task);
  if (task.takes(rank())) {
    find_inputs(task, offset_in(task) * task.width());
    take(task, 0, task.count, met_.is(Kind::direct) && met_.way().streamed);
  }
  if (!met_.small()) finish_reading();
}

/** Inputs go through the staging memory, piece by piece. */
void Local::relay(const Task& task) {
  const std::int64_t width = task.width();
  // In a slot each rank finds the piece of its block, or all find the same.
  const std::int64_t parts = task.by_blocks() ? size() : 1;
  const std::int64_t most = std::max<std::int64_t>(met_.way().piece / parts / width, 1);
  const bool is_spread = task.kind == TaskKind::spread;
  // A root alone needs nothing of itself.
  const bool gives = task.gives(rank()) && (is_spread || task.root != rank());

  const auto stage = [&](std::int64_t begin, std::int64_t count, std::size_t slot) {
    std::byte* target = staging_of(rank()).in[slot].data();
    if (!task.by_blocks()) {
      const std::int64_t whole = task.count_of(rank());
      const std::int64_t length = std::clamp<std::int64_t>(whole - begin, 0, count);
      return cpu::copy(target, task.in.part(begin, 0).data, length * width, met_.way().streamed);
    }
    for (int peer = 0; peer < size(); ++peer) {
      if (peer == rank()) continue;
      const std::int64_t length = std::clamp<std::int64_t>(task.count_of(peer) - begin, 0, count);
      cpu::copy(target + peer * most * width, task.in.part(task.begin_of(peer) + begin, 0).data,
                length * width, met_.way().streamed);
    }
  };
  const auto fetch = [&](std::int64_t begin, std::int64_t count, std::size_t slot) {
    const void* own = task.gives(rank()) ? task.in.part(offset_in(task) + begin, 0).data : nullptr;
    find_pieces(slot, task.by_blocks() ? rank() * most * width : 0, own);
    take(task, begin, count, false);
  };
  relay(task.count, most, {gives, task.takes(rank()), is_spread ? task.root : Task::kAll}, stage,
        fetch);
}

/** Inputs in the private memory of other processes. */
void Local::pull(const Task& task) {
  if (task.takes(rank())) {
    if (task.combines()) {
      pull_and_combine(task, offset_in(task), task.out, own_count(task));
    } else {
      const auto moved = static_cast<std::uint64_t>(offset_in(task) * task.width());
      for (int step = 1; step < size(); ++step) {
        const int giver = (rank() + step) % size();  // not all from the same rank at once
        if (!task.gives(giver)) continue;
        const View place = place_of(task, giver);
        pull_from(giver, place.data, request_of(giver).in_address + moved, place.bytes());
      }
    }
  }
  finish_reading();
}

void Local::pull_and_combine(const Task& task, std::int64_t offset, View out, std::int64_t count) {
  const std::int64_t most = met_.way().piece / task.width();
  for (std::int64_t begin = 0; begin < count; begin += most) {
    const std::int64_t length = std::min(most, count - begin);
    pull_inputs(task, offset + begin, length);
    void* target = out.part(begin, length).data;
    cpu::reduce(std::span(&target, 1), inputs_, length, task.dtype, task.combine);
  }
}

}  // namespace tutti::shm
