// Collectives over several hosts that move blocks from rank to rank, and scans.
#include "comm/blocks.hpp"

#include "base/memory.hpp"
#include "comm/hosts/transport.hpp"
#include "tutti/error.hpp"

namespace tutti {

/** Between hosts every rank talks for itself: a block goes straight to who needs it. */
void HierarchicalTransport::exchange_blocks(const Call& call) {
  agree(call);
  std::int64_t longest = 0;
  if (call.operation == Operation::all_to_all_v) {
    const AgreedCounts agreed = compare_counts(*this, call);
    if (agreed.mismatch) throw MismatchError(*agreed.mismatch);
    longest = agreed.longest;
    local_->group().synchronise();  // some may still be reading the counts where blocks are staged
  } else {
    longest = longest_block(call);
  }
  // What goes out is read while the answers come in: not from the same memory.
  const bool in_place = call.operation == Operation::all_to_all && call.in.data == call.out.data;
  const Scratch copied(channel_->scratch(), in_place ? call.in.bytes() : 0);
  Call apart = call;
  if (in_place) {
    copy_bytes(copied.data(), call.in.data, call.in.bytes());
    apart.in.data = copied.data();
  }
  const Blocks blocks(apart, rank(), size());
  Batch remote(*channel_, Wire::Traffic::collective);
  for (int peer = 0; peer < size(); ++peer) {
    if (layout_.host_of(peer) == host()) continue;
    const auto at = static_cast<std::size_t>(peer);
    remote.recv(blocks.from[at].data, blocks.from[at].bytes(), peer);
    remote.send(blocks.to[at].data, blocks.to[at].bytes(), peer);
  }
  std::vector<ConstView> to;
  std::vector<View> from;
  for (const int neighbour : layout_.ranks_of(host())) {
    to.push_back(blocks.to[static_cast<std::size_t>(neighbour)]);
    from.push_back(blocks.from[static_cast<std::size_t>(neighbour)]);
  }
  local_->exchange(to, from, longest);
  remote.wait();
  local_->group().synchronise();  // until then the leader looks after the other hosts
}

void HierarchicalTransport::scan(const Call& call) {
  agree(call);
  scan_gathered(*this, call);
}

}  // namespace tutti
