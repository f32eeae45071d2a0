// A sum of sparse vectors where every rank gets the entries of all: how GPUs exchange them.
#pragma once

#include <cstdint>

#include "device/arithmetic.hpp"
#include "tutti/communicator.hpp"

namespace tutti {

/**
 * One such sum after the other: select, have own() gathered into all(), add up. Memory is kept for
 * the next. The ranks' entries are added in the order of the ranks. Top-K sends k entries, counted
 * on the GPU; a threshold as many as the rank that has most, for which the CPU asks. Of elements
 * that are not finite top-K sends no more than k, the others stay. The work is launched on the
 * stream of the arithmetic, which, as the communicator, outlives the object.
 */
class GatheredSum {
 public:
  /** Entries with room for some: their number, then all indices, then all values. */
  struct Message {
    Buffer memory;
    std::int64_t room = 0;
    std::int64_t most = 0;  // of the entries that were selected
  };

  GatheredSum(Communicator& communicator, Arithmetic& arithmetic)
      : communicator_(&communicator), arithmetic_(&arithmetic) {}

  /** See Arithmetic. */
  void select_top_k(const float* values, float* residual, std::int64_t count, std::int64_t k);
  /** Likewise, by way of `all`, which has room for all elements and may serve several sums.
   * Collective, and blocks. */
  void select_above(const float* values, float* residual, std::int64_t count, float threshold,
                    Message& all);

  /** What this rank has selected. */
  Entries entries() const { return entries_at(own_.memory.data(), own_.room, own_.most); }
  /** How many of these are elements of the vector. */
  std::int64_t count() const { return count_; }
  /** What travels: as many bytes on all ranks. */
  View own() const { return own_.memory.view(DType::i32).part(0, words(own_.room)); }
  /** Where that of all ranks arrives, in the order of the ranks. */
  View all() const {
    return all_.view(DType::i32).part(0, words(own_.room) * communicator_->world_size());
  }
  /** sums[i] = the sum of what has arrived at index i, for i < count. */
  void add_up(float* sums, std::int64_t count) const;

 private:
  static std::int64_t words(std::int64_t room);
  static Selected slots_at(void* message, std::int64_t room, std::int64_t most);
  static Entries entries_at(void* message, std::int64_t room, std::int64_t most);
  static Selected slots_of(const Message& message);
  void make_message(Message& message, std::int64_t most) const;
  std::int64_t count_of(const Message& message) const;
  void shrink(const Message& message);
  void make_room(Buffer& memory, std::int64_t words) const;
  void make_room_for_all();

  Communicator* communicator_;
  Arithmetic* arithmetic_;
  Message own_;
  Buffer all_;  // the messages of all ranks
  std::int64_t count_ = 0;
};

}  // namespace tutti
