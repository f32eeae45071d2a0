// Reductions by direct exchange between every two members.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/hosts/group/ahead.hpp"
#include "comm/hosts/group/pipeline.hpp"
#include "comm/hosts/group/shards.hpp"
#include "comm/scratch.hpp"
#include "device/cpu/kernels.hpp"
#include "tutti/dtype.hpp"

namespace tutti {

/**
 * What the members of a group add up, always in the order of the hosts.
 *
 * Every shard goes straight to its owner, who adds the hosts' contributions and hands the result
 * straight to those who get it: 2 (H-1)/H times the bytes a link where all do, which is the least
 * there is, one rounding for 16-bit types, and an order of additions that does not depend on the
 * shard. Source: direct (pairwise) reduce-scatter and all-gather, Thakur, Rabenseifner and Gropp,
 * "Optimization of Collective Communication Operations in MPICH", 2005. Shards travel in windows,
 * so that adding, sending and receiving overlap and temporary memory stays small. Small messages go
 * whole to everybody, who adds them all: one round, the same order.
 */
class DirectReduction {
 public:
  /** Who gets the results besides the owners of the shards: a member, or one of these. */
  static constexpr int kNobody = -1;
  static constexpr int kEverybody = -2;

  /** `group` outlives it. */
  DirectReduction(const HostGroup& group, DType dtype, const cpu::Combine& combine)
      : group_(group), dtype_(dtype), combine_(combine) {}

  /** In place: every member sends all it has to all others, and all add alike. */
  void reduce_whole(std::byte* data, std::int64_t bytes) const;
  /** Those who own shards add them up; part(owner, number) is a window of one, own(owner, number)
   * what this member has to add to it. Calls before(number) ahead of a window's exchange, agree, if
   * there is one, behind the first, and after(number) when a window's results are there. */
  template <class Part, class Own, class Before, class After>
  void reduce_shards(const Part& part, const Own& own, const WindowPlan& windows, int receivers,
                     const Agree& agree, const Before& before, const After& after) const;
  template <class Part, class Own>
  void reduce_shards(const Part& part, const Own& own, const WindowPlan& windows,
                     int receivers) const {
    reduce_shards(part, own, windows, receivers, {}, kNothing, kNothing);
  }
  /** to = the combination of all members' contributions; those of the others lie `stride` bytes
   * apart. */
  void combine(std::byte* to, const std::byte* own, const std::byte* others, std::int64_t stride,
               std::int64_t bytes) const;

 private:
  const HostGroup& group_;
  DType dtype_;
  cpu::Combine combine_;
};

template <class Part, class Own, class Before, class After>
void DirectReduction::reduce_shards(const Part& part, const Own& own, const WindowPlan& windows,
                                    int receivers, const Agree& agree, const Before& before,
                                    const After& after) const {
  const int size = group_.size();
  const int position = group_.position();
  const std::int64_t window = windows.bytes;
  const std::int64_t depth = windows.under_way;
  const Scratch memory(group_.wire().scratch(), depth * size * window);
  std::optional<Ahead> ahead;
  const auto received = [&](std::int64_t number, int member) {
    return memory.data() + ((number % depth) * size + member) * window;
  };
  const auto exchange = [&](auto& messages, std::int64_t number) {
    const std::size_t bytes = part(position, number).size();
    group_.in_turns([&](int source, int target) {
      messages.recv({received(number, source), bytes}, source);
      messages.send(own(target, number), target);
    });
  };
  const auto contribute = [&](GroupBatch& batch, std::int64_t number) {
    before(number);
    if (number > 0 || !agree) return exchange(batch, number);
    ahead.emplace(group_, window);
    exchange(*ahead, number);
    agree(&*ahead);
  };
  const auto add = [&](std::int64_t number) {
    if (number == 0 && ahead) ahead->batch.wait();
    const auto to = part(position, number);
    combine(to.data(), own(position, number).data(), received(number, 0), window, std::ssize(to));
  };
  const auto spread = [&](GroupBatch& batch, std::int64_t number) {
    const auto gets = [&](int member) { return receivers == kEverybody || receivers == member; };
    group_.in_turns([&](int source, int target) {
      if (gets(position)) batch.recv(part(source, number), source);
      if (gets(target)) batch.send(part(position, number), target);
    });
  };
  run_pipeline(group_, windows.count, depth, PipelineStep{contribute, add},
               PipelineStep{spread, after});
}

}  // namespace tutti
