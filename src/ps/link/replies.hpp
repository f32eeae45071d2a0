// Answers that have come and not been asked for.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "ps/link/link.hpp"

namespace tutti::ps {

/** Not thread-safe. */
class Replies {
 public:
  /** An answer has come. */
  void put(std::uint64_t number, Reply reply) {
    if (forgotten_.erase(number) == 0) {
      kept_.emplace(number, std::move(reply));
    } else {
      drop(std::move(reply));
    }
  }
  /** Takes one; nothing if it has not come. */
  std::optional<Reply> take(std::uint64_t number) {
    const auto found = kept_.find(number);
    if (found == kept_.end()) return std::nullopt;
    Reply reply = std::move(found->second);
    kept_.erase(found);
    return reply;
  }
  void forget(std::uint64_t number) {
    if (std::optional<Reply> reply = take(number)) {
      drop(std::move(*reply));
    } else {
      forgotten_.insert(number);
    }
  }
  /** The first refusal among those forgotten, once. */
  Reply refusal() { return std::exchange(refusal_, Reply()); }

 private:
  void drop(Reply reply) {
    const Outcome outcome = reply.header.outcome;
    if (outcome == Outcome::not_yet || outcome == Outcome::not_saved) return;
    if (refusal_.header.outcome == Outcome::done) refusal_ = std::move(reply);
  }

  std::map<std::uint64_t, Reply> kept_;
  std::set<std::uint64_t> forgotten_;  // before they have come
  Reply refusal_;
};

}  // namespace tutti::ps
