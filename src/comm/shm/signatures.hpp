// What the ranks of a host ask for, where all of them see it.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/shm/local.hpp"
#include "comm/signature.hpp"

namespace tutti::shm {

/** The signatures of the ranks of a host, by meeting of `local`. */
class Signatures {
 public:
  /** `local` outlives it. */
  explicit Signatures(Local& local) : local_(local) {}

  /** Comes to a task with `signature`; whether all came with the same. Local::meet() does the
   * comparing; what each rank came with is written down for those that differ. */
  bool meet(const Task& task, const Signature& signature,
            LocalGroup::Waited waited = LocalGroup::Waited::for_arrival) {
    local_.group().control().slot(local_.rank()).signatures[(local_.meetings() + 1) & 1U] =
        signature;
    const std::uint64_t hash = signature.hash();
    return local_.meet(task, static_cast<std::uint32_t>(hash ^ (hash >> 32U)), waited);
  }

  /** What the ranks came with to the last meeting, named as the user knows them. */
  std::vector<RankSignature> all() const {
    std::vector<RankSignature> all;
    for (int peer = 0; peer < local_.size(); ++peer) {
      const RankSlot& slot = local_.group().control().slot(peer);
      all.push_back({local_.group().name_of(peer), slot.signatures[local_.meetings() & 1U]});
    }
    return all;
  }

 private:
  Local& local_;
};

}  // namespace tutti::shm
