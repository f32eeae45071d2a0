// Blocks that differ in length, through the staging memory; and the operations that are made of
// them.
#include "comm/blocks.hpp"

#include "base/memory.hpp"
#include "comm/shm/pipeline.hpp"
#include "comm/shm/transport.hpp"
#include "device/cpu/reduction.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {

void Local::exchange(std::span<const ConstView> to, std::span<const View> from,
                     std::int64_t longest) {
  const auto own = static_cast<std::size_t>(rank());
  copy_bytes(from[own].data, to[own].data, to[own].bytes());
  relay_blocks(
      longest, size_of(to[own].dtype), [&](int peer) { return to[static_cast<std::size_t>(peer)]; },
      [&](std::int64_t begin, std::int64_t count) {
        for (std::size_t peer = 0; peer < from.size(); ++peer) {
          if (peer == own) continue;
          const View target = piece_of(from[peer], begin, count);
          copy_bytes(target.data, inputs_[peer], target.bytes());
        }
      });
  group_.check_own_loss();
}

void Local::reduce_blocks(std::span<const ConstView> to, View out, std::int64_t longest,
                          const cpu::Combine& combine) {
  relay_blocks(
      longest, size_of(out.dtype), [&](int peer) { return to[static_cast<std::size_t>(peer)]; },
      [&](std::int64_t begin, std::int64_t count) {
        const View target = piece_of(out, begin, count);
        if (target.count == 0) return;
        cpu::reduce(std::span(&target.data, 1), inputs_, target.count, out.dtype, combine);
      });
  group_.check_own_loss();
}

void ShmTransport::exchange_blocks(const Call& call) {
  agree(call);
  std::int64_t longest = 0;
  if (call.operation == Operation::all_to_all_v) {
    const AgreedCounts agreed = compare_counts(*this, call);
    if (agreed.mismatch) {
      local_->group().fail_mismatch(*agreed.mismatch);
      throw MismatchError(*agreed.mismatch);
    }
    longest = agreed.longest;
    local_->group().synchronise();  // some may still be reading the counts where blocks are staged
  } else {
    longest = longest_block(call);
  }
  const Blocks blocks(call, rank(), size());
  local_->exchange(blocks.to, blocks.from, longest);
}

void ShmTransport::reduce_scatter_v(const Call& call) {
  agree(call);
  std::vector<ConstView> to;
  std::int64_t start = 0;
  for (const std::int64_t count : call.counts) {
    to.push_back(call.in.part(start, count));
    start += count;
  }
  local_->reduce_blocks(to, call.out, longest_block(call), combine_of(call.reduction, size()));
}

}  // namespace tutti::shm
