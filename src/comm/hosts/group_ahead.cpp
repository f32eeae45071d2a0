// Messages that go ahead of an agreement, and what becomes of them without one.
#include "comm/hosts/group_ahead.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

void HostGroup::send(Ahead& ahead, std::span<const std::byte> part, int position) {
  if (part.empty()) return;
  if (ahead.follows_headers) {
    ahead.leaves[static_cast<std::size_t>(position)] = part;
    return;
  }
  send(ahead.batch, part, position);
  ahead.sent[static_cast<std::size_t>(position)] = std::byte{1};
}

void HostGroup::recv(Ahead& ahead, std::span<std::byte> part, int position) {
  if (part.empty()) return;
  if (ahead.follows_headers) {
    ahead.comes[static_cast<std::size_t>(position)] = part;
    return;
  }
  recv(ahead.batch, {part.data(), static_cast<std::size_t>(ahead.window)}, position);
  ahead.wanted[static_cast<std::size_t>(position)] = std::byte{1};
}

/** Behind headers all has come, see tell_all(). Otherwise all tell each other what they have sent:
 * who has wanted more of somebody takes that back, and takes, and drops, what nobody has wanted. */
void HostGroup::settle() {
  if (stand_in_groups() || is_centred()) return;
  const RecycledVector<std::byte> nothing(members_.size());
  const RecycledVector<std::byte>& sent = ahead_ != nullptr ? ahead_->sent : nothing;
  const RecycledVector<std::byte>& wanted = ahead_ != nullptr ? ahead_->wanted : nothing;
  RecycledVector<std::int64_t> offsets;
  for (int i = 0; i <= size(); ++i) offsets.push_back(i);
  // What is under way may outlive this call.
  const Scratch told(wire_.scratch(), std::int64_t{2} * size());
  std::byte* const come = told.data() + size();
  std::copy(sent.begin(), sent.end(), told.data());
  all_to_all_v(told.data(), offsets, come, offsets);

  const Scratch memory(wire_.scratch(), size() * Wire::kPiece);
  Batch unwanted(wire_, Wire::Traffic::ahead);
  for (int i = 0; i < size(); ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (come[at] == wanted[at]) continue;
    if (come[at] == std::byte{0}) {
      ahead_->batch.withdraw(members_[at]);
    } else {
      recv(unwanted, {memory.data() + i * Wire::kPiece, Wire::kPiece}, i);
    }
  }
  unwanted.wait();
  if (ahead_ != nullptr) ahead_->batch.wait();
  // What goes ahead of the next call must not meet a receive that is still to be withdrawn.
  agree(0);
}

}  // namespace tutti
