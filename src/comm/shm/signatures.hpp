// What the ranks of a host ask for, where all of them see it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/shm/local.hpp"
#include "comm/signature.hpp"

namespace tutti::shm {

/**
 * What each rank of a host asks for in its calls, of which the last Notebook::kCalls are kept. A
 * call has the same number on all ranks, which is its signature's. Ranks that meet compare by
 * that; where some go on without the others, whoever waits for long looks here.
 */
class Signatures {
 public:
  /** `local` outlives it. */
  explicit Signatures(Local& local) : local_(local) {}

  /** A call of this rank begins. */
  void begin(const Signature& signature);
  /** Of the call under way. */
  std::uint64_t hash() const { return hash_; }

  /** Comes to the first task of the call; whether all came with the same signature. */
  bool meet(const Task& task) {
    return local_.meet(task, static_cast<std::uint32_t>(hash_ ^ (hash_ >> 32U)));
  }

  /** What the ranks asked for in the first call in which one of them differs from this one, named
   * as the user knows them: those that have come to it. Empty if none is known to. From any
   * thread. */
  std::vector<RankSignature> differing() const;
  /** What `peer` asks for in its last call. */
  RankSignature last_of(int peer) const;

 private:
  /** The first call in which `peer` asked for something else. */
  std::optional<std::uint64_t> first_difference(int peer) const;
  Notebook& notebook(int rank) const { return local_.group().control().notebook(rank); }

  Local& local_;
  std::uint64_t hash_ = 0;
  std::uint64_t history_ = 0;  // a hash of all calls so far
};

}  // namespace tutti::shm
