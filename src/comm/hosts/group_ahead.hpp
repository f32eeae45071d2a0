// What the members of a group send to each other before they know whether they agree.
#pragma once

#include <cstdint>

#include "base/recycled.hpp"
#include "comm/hosts/group.hpp"

namespace tutti {

class HostGroup::Ahead {
 public:
  explicit Ahead(HostGroup& group)
      : batch(group.wire_, Wire::Traffic::ahead),
        sent(group.members_.size()),
        wanted(group.members_.size()),
        group_(group) {
    group_.ahead_ = this;
  }
  Ahead(const Ahead&) = delete;
  Ahead& operator=(const Ahead&) = delete;
  ~Ahead() { group_.ahead_ = nullptr; }

  Batch batch;
  RecycledVector<std::byte> sent;    ///< messages, by member
  RecycledVector<std::byte> wanted;  ///< of each

 private:
  HostGroup& group_;
};

}  // namespace tutti
