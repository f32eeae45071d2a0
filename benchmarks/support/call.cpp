// What each collective has to leave in its output.
#include "support/call.hpp"

#include <array>
#include <cstddef>

namespace tutti::bench {

const char* name_of(Op op) {
  constexpr std::array<const char*, 8> kNames{"all_reduce",     "broadcast",      "all_gather",
                                              "reduce_scatter", "all_to_all",     "reduce",
                                              "barrier",        "broadcast_round"};
  return kNames[static_cast<std::size_t>(op)];
}

bool is_in_place(Op op) {
  return op == Op::all_reduce || op == Op::broadcast || op == Op::broadcast_round;
}

bool Call::succeeded(int rank, int ranks, const Pattern& pattern) const {
  const bool uniform = pattern.stripes == 1;
  switch (op) {
    case Op::reduce:
      if (rank != 0) return true;
      [[fallthrough]];
    case Op::all_reduce:
      return holds(out, uniform, [&](std::int64_t i) { return pattern.sum(ranks, i); });
    case Op::broadcast:
    case Op::broadcast_round:
      return holds(out, uniform, [&](std::int64_t i) { return pattern.contribution(0, i); });
    case Op::reduce_scatter:
      return holds(out, uniform,
                   [&](std::int64_t i) { return pattern.sum(ranks, rank * out.count + i); });
    case Op::barrier:
      return true;
    case Op::all_gather:
    case Op::all_to_all:
      break;
  }
  const std::int64_t block = out.count / ranks;
  const std::int64_t begin = op == Op::all_to_all ? rank * block : 0;
  for (int from = 0; from < ranks; ++from) {
    const auto expected = [&](std::int64_t i) { return pattern.contribution(from, begin + i); };
    if (!holds(out.part(from * block, block), uniform, expected)) return false;
  }
  return true;
}

}  // namespace tutti::bench
