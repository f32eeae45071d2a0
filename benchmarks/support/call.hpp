// A collective to be timed: what it works on, and what it has to leave there.
#pragma once

#include <cstdint>

#include "support/elements.hpp"
#include "tutti/dtype.hpp"

namespace tutti::bench {

enum class Op : std::uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  all_to_all,
  reduce,
  barrier,
  broadcast_round,  ///< a broadcast from each rank in turn, of what the one before has brought
};

/** "all_reduce", ... */
const char* name_of(Op op);
/** Whether `in` and `out` of its calls are the same memory. */
bool is_in_place(Op op);

/**
 * One collective of this rank, with the views that Communicator's methods take. All-reduce and
 * broadcasts work in place: `in` and `out` are the same. The root is rank 0.
 */
struct Call {
  Op op = Op::all_reduce;
  View in;
  View out;

  /** Of the larger of both, which is what sizes and bandwidths refer to, as in nccl-tests. */
  std::int64_t bytes() const { return in.bytes() > out.bytes() ? in.bytes() : out.bytes(); }

  /** Writes what this rank brings. */
  void prepare(int rank, const Pattern& pattern) const { fill(in, rank, pattern); }

  /** Reads the result: whether it is right. */
  bool succeeded(int rank, int ranks, const Pattern& pattern) const;
};

}  // namespace tutti::bench
