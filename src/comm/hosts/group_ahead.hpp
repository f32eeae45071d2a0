// What the members of a group send to each other before they know whether they agree.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/recycled.hpp"
#include "comm/hosts/group.hpp"

namespace tutti {

class HostGroup::Ahead {
 public:
  /** `longest`: the most that a message may have. */
  Ahead(HostGroup& group, std::int64_t longest)
      : follows_headers(group.is_centred()),
        batch(group.wire_, follows_headers ? Wire::Traffic::collective : Wire::Traffic::ahead),
        sent(group.members_.size()),
        wanted(group.members_.size()),
        leaves(group.members_.size()),
        comes(group.members_.size()),
        window(longest),
        group_(group) {
    group_.ahead_ = this;
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;
  ~Ahead() { group_.ahead_ = nullptr; }

  const bool follows_headers;  ///< that the members send each other: see tell_all()
  Batch batch;
  RecycledVector<std::byte> sent;                     ///< messages, by member
  RecycledVector<std::byte> wanted;                   ///< of each
  RecycledVector<std::span<const std::byte>> leaves;  ///< behind headers, to each
  RecycledVector<std::span<std::byte>> comes;         ///< likewise, from each
  const std::int64_t window;                          ///< the longest message

 private:
  HostGroup& group_;
};

}  // namespace tutti
