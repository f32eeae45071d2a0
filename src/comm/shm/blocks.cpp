// Collectives through shared memory whose blocks differ in length, and scans.
#include "comm/blocks.hpp"

#include <algorithm>

#include "base/memory.hpp"
#include "comm/shm/pipeline.hpp"
#include "device/cpu/reduction.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {

void ShmTransport::exchange(const Call& call) {
  begin_checked(call);
  std::int64_t longest = 0;
  if (call.operation == Operation::all_to_all_v) {
    const AgreedCounts agreed = compare_counts(*this, call);
    if (agreed.mismatch) {
      host_.fail_mismatch(*agreed.mismatch);
      throw MismatchError(*agreed.mismatch);
    }
    longest = agreed.longest;
    host_.synchronise();  // some may still be reading the counts where the blocks are staged
  } else {
    longest = longest_block(call);
  }
  const Blocks blocks(call, rank(), size());
  exchange(blocks.to, blocks.from, longest);
}

void ShmTransport::exchange(std::span<const ConstView> to, std::span<const View> from,
                            std::int64_t longest) {
  const auto own = static_cast<std::size_t>(rank());
  copy_bytes(from[own].data, to[own].data, to[own].bytes());
  relay_blocks(
      longest, size_of(to[own].dtype), Choices::kPiece, false,
      [&](int peer) { return to[static_cast<std::size_t>(peer)]; },
      [&](std::span<const void* const> sources, auto begin, auto count) {
        for (std::size_t peer = 0; peer < from.size(); ++peer) {
          if (peer == own) continue;
          const View target = piece_of(from[peer], begin, count);
          copy_bytes(target.data, sources[peer], target.bytes());
        }
      });
  host_.check_own_loss();
}

void ShmTransport::reduce_scatter_v(const Call& call) {
  begin_checked(call);
  const cpu::Combine combine = combine_of(call.reduction, size());
  std::vector<std::int64_t> starts{0};
  for (const std::int64_t count : call.counts) starts.push_back(starts.back() + count);
  relay_blocks(
      longest_block(call), size_of(call.dtype), Choices::kPiece, false,
      [&](int peer) {
        const auto at = static_cast<std::size_t>(peer);
        return call.in.part(starts[at], call.counts[at]);
      },
      [&](std::span<const void* const> sources, auto begin, auto count) {
        const View target = piece_of(call.out, begin, count);
        if (target.count == 0) return;
        cpu::reduce(std::span(&target.data, 1), sources, target.count, call.dtype, combine);
      });
  host_.check_own_loss();
}

void ShmTransport::scan(const Call& call) {
  begin_checked(call);
  scan_gathered(*this, call);
}

}  // namespace tutti::shm
