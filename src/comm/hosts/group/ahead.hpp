// What the members of a group send to each other before they know whether they agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "base/recycled.hpp"
#include "comm/hosts/group/group_batch.hpp"

namespace tutti {

/**
 * The messages of a call that go ahead of its agreement: at most one from each member to each other
 * one. Between two members, or more than HostGroup::kMostCentred, each is a message by itself, to
 * temporary memory of the receiver. From three to so many GroupAgreement sends them behind the
 * headers of the agreement, and takes those for which recv() was called once it knows that the
 * sender asks for the same; who calls it takes others after the agreement, where they belong. So
 * nothing is written before the members agree. Not among members that stand in groups.
 */
class Ahead {
 public:
  /** `longest`: the most that a message may have. `group` outlives it. */
  Ahead(const HostGroup& group, std::int64_t longest)
      : follows_headers(group.is_centred()),
        batch(group, follows_headers ? Wire::Traffic::collective : Wire::Traffic::ahead),
        sent(static_cast<std::size_t>(group.size())),
        wanted(sent.size()),
        leaves(sent.size()),
        comes(sent.size()),
        window(longest) {}

  /** Now, or behind the header: `part` stays until the agreement. */
  void send(std::span<const std::byte> part, int position) {
    if (part.empty()) return;
    const auto at = static_cast<std::size_t>(position);
    if (follows_headers) {
      leaves[at] = part;
      return;
    }
    batch.send(part, position);
    sent[at] = std::byte{1};
  }
  /** `part` begins a window: who does not agree may send more than is wanted. */
  void recv(std::span<std::byte> part, int position) {
    if (part.empty()) return;
    const auto at = static_cast<std::size_t>(position);
    if (follows_headers) {
      comes[at] = part;
      return;
    }
    batch.recv({part.data(), static_cast<std::size_t>(window)}, position);
    wanted[at] = std::byte{1};
  }

  const bool follows_headers;  ///< that the members send each other as they agree
  GroupBatch batch;
  RecycledVector<std::byte> sent;                     ///< messages, by member
  RecycledVector<std::byte> wanted;                   ///< of each
  RecycledVector<std::span<const std::byte>> leaves;  ///< behind headers, to each
  RecycledVector<std::span<std::byte>> comes;         ///< behind those of each
  const std::int64_t window;                          ///< the longest message
};

/** Calls GroupAgreement::agree() once, with what goes ahead of it, or null, and throws if the
 * members do not agree: after GroupAgreement::settle(), with the same. */
using Agree = std::function<void(Ahead* ahead)>;

}  // namespace tutti
