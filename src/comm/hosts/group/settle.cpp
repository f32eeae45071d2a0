// What becomes of messages that went ahead, where the members do not agree.
#include "comm/hosts/group/agreement.hpp"

#include <algorithm>

#include "base/recycled.hpp"
#include "comm/hosts/group/movements.hpp"

namespace tutti {

/** Behind headers all has come, see tell_all(). Otherwise all tell each other what they have sent:
 * who has wanted more of somebody takes that back, and takes, and drops, what nobody has wanted. */
void GroupAgreement::settle(Ahead* ahead) {
  if (group_.stand_in_groups() || group_.is_centred()) return;
  const int size = group_.size();
  const RecycledVector<std::byte> nothing(static_cast<std::size_t>(size));
  const RecycledVector<std::byte>& sent = ahead != nullptr ? ahead->sent : nothing;
  const RecycledVector<std::byte>& wanted = ahead != nullptr ? ahead->wanted : nothing;
  RecycledVector<std::int64_t> offsets;
  for (int i = 0; i <= size; ++i) offsets.push_back(i);
  // What is under way may outlive this call.
  const Scratch told(group_.wire().scratch(), std::int64_t{2} * size);
  std::byte* const come = told.data() + size;
  std::copy(sent.begin(), sent.end(), told.data());
  all_to_all_v(group_, told.data(), offsets, come, offsets);

  const Scratch memory(group_.wire().scratch(), size * Wire::kPiece);
  GroupBatch unwanted(group_, Wire::Traffic::ahead);
  for (int i = 0; i < size; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (come[at] == wanted[at]) continue;
    if (come[at] == std::byte{0}) {
      ahead->batch.withdraw(i);
    } else {
      unwanted.recv({memory.data() + i * Wire::kPiece, Wire::kPiece}, i);
    }
  }
  unwanted.wait();
  if (ahead != nullptr) ahead->batch.wait();
  // What goes ahead of the next call must not meet a receive that is still to be withdrawn.
  agree(0);
}

}  // namespace tutti
