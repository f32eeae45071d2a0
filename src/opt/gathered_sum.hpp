// A sum of sparse vectors where every rank gets the entries of all: how GPUs exchange them.
#pragma once

#include <cstdint>

#include "device/arithmetic.hpp"
#include "tutti/communicator.hpp"
#include "tutti/compressor.hpp"

namespace tutti {

/**
 * One such sum: select, have packet().own gathered into packet().all, add up. The ranks' entries
 * are added in the order of the ranks. Top-K sends k entries, counted on the GPU; a threshold as
 * many as the rank that has most, for which the host asks. Of elements that are not finite top-K
 * sends no more than k, the others stay. The work is launched on the stream of the arithmetic,
 * which, as the communicator, outlives the object.
 */
class GatheredSum {
 public:
  GatheredSum(Communicator& communicator, Arithmetic& arithmetic)
      : communicator_(&communicator), arithmetic_(&arithmetic) {}

  /** See Arithmetic. */
  void select_top_k(const float* values, float* residual, std::int64_t count, std::int64_t k);
  /** Likewise. Collective, and blocks. */
  void select_above(const float* values, float* residual, std::int64_t count, float threshold);

  /** What this rank has selected. */
  Entries entries() const { return entries_at(own_.memory.data(), own_.room, own_.most); }
  /** What travels. */
  GatheredEntries packet() const;
  /** sums[i] = the sum of what has arrived at index i, for i < count. */
  void add_up(float* sums, std::int64_t count) const;

 private:
  /** Entries with room for some: their number, then all indices, then all values. */
  struct Parcel {
    Buffer memory;
    std::int64_t room = 0;
    std::int64_t most = 0;  // of the entries that were selected
  };

  static std::int64_t words(std::int64_t room);
  static Selected slots_at(void* parcel, std::int64_t room, std::int64_t most);
  static Entries entries_at(void* parcel, std::int64_t room, std::int64_t most);
  static Selected slots_of(const Parcel& parcel);
  Parcel make_parcel(std::int64_t most) const;
  std::int64_t count_of(const Parcel& parcel) const;
  Parcel shrink(const Parcel& parcel) const;
  void make_room();

  Communicator* communicator_;
  Arithmetic* arithmetic_;
  Parcel own_;
  Buffer all_;  // the parcels of all ranks
  std::int64_t count_ = 0;
};

}  // namespace tutti
