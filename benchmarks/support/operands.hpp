// What a collective that is timed works on, and how tutti is asked for it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>

#include "support/call.hpp"
#include "support/memory.hpp"
#include "support/options.hpp"
#include "tutti/communicator.hpp"

namespace tutti::bench {

/** `bytes` or a little more: such that every rank's block is a whole number of elements. */
std::int64_t rounded_bytes(Op op, DType dtype, std::int64_t bytes, int ranks);

/** Memory for the input and the output of a collective: shared by both if it works in place. */
class Operands {
 public:
  /** Each side has `bytes`, the same on all ranks. Collective for Buffers::arena. */
  Operands(Communicator& comm, Buffers buffers, Op op, std::int64_t bytes);

  /** `bytes` are those of the larger side. */
  Call call(Op op, DType dtype, std::int64_t bytes, int ranks) const;

 private:
  std::array<Buffer, 2> symmetric_;
  std::array<std::unique_ptr<HugeMemory>, 2> own_;
  std::array<void*, 2> data_{};
};

/** `call` by tutti, over the ranks of `comm`, which must outlive what is returned. */
std::function<void()> way_of_tutti(Communicator& comm, const Call& call);

}  // namespace tutti::bench
