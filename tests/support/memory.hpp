// Guarded memory for the arguments of collectives.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "tutti/communicator.hpp"

namespace tutti::test {

/** Where the arguments of a collective lie. */
enum class Memory {
  ordinary,   ///< this process' own memory, one element off its alignment
  symmetric,  ///< in one allocation, at the same place on every rank
  staggered,  ///< in one allocation, at a place that differs by rank
  mixed,      ///< `in` is symmetric on even ranks, `out` on odd ones
};
inline constexpr std::array<Memory, 4> kMemories{Memory::ordinary, Memory::symmetric,
                                                 Memory::staggered, Memory::mixed};
std::string_view name_of(Memory memory);

/** Room for an input and an output, in ordinary and in symmetric memory, with guard bytes. */
class Arena {
 public:
  static constexpr std::int64_t kGuard = 64;

  /** Collective. Inputs and outputs have up to `bytes` bytes. */
  Arena(Communicator& communicator, std::int64_t bytes);

  /** `count` elements for the input, whose guards and contents are freshly written. */
  View input(Memory memory, std::int64_t count, DType dtype) {
    return place(0, memory, count, dtype);
  }
  View output(Memory memory, std::int64_t count, DType dtype) {
    return place(1, memory, count, dtype);
  }

  /** Whether nothing was written around the last input and output. */
  ::testing::AssertionResult guards_intact() const;
  /** Whether an input or output still holds what input() or output() filled it with. */
  static ::testing::AssertionResult untouched(const ConstView& view);

 private:
  struct Placed {
    std::byte* begin = nullptr;
    std::byte* end = nullptr;
  };
  View place(std::size_t slot, Memory memory, std::int64_t count, DType dtype);

  int rank_;
  std::int64_t slot_bytes_;
  std::array<std::vector<std::byte>, 2> ordinary_;
  Buffer symmetric_;
  std::array<Placed, 2> placed_;
};

}  // namespace tutti::test
