// What a step of a trial is called, how much memory it takes, and how a rank gets it wrong.
#include <algorithm>
#include <array>
#include <sstream>

#include "rig/trial.hpp"

namespace tutti::test {
namespace {

bool reduces(Op op) {
  constexpr std::array<Op, 6> kThese{Op::all_reduce,       Op::reduce, Op::reduce_scatter,
                                     Op::reduce_scatter_v, Op::scan,   Op::exscan};
  return std::find(kThese.begin(), kThese.end(), op) != kThese.end();
}

bool has_root(Op op) {
  constexpr std::array<Op, 6> kThese{Op::reduce,   Op::broadcast, Op::gather,
                                     Op::gather_v, Op::scatter,   Op::scatter_v};
  return std::find(kThese.begin(), kThese.end(), op) != kThese.end();
}

}  // namespace

bool has_many_parts(Op op) {
  constexpr std::array<Op, 11> kThese{
      Op::all_gather, Op::all_gather_v,     Op::all_to_all,   Op::reduce_scatter,
      Op::gather,     Op::gather_v,         Op::scatter,      Op::scatter_v,
      Op::exchange,   Op::reduce_scatter_v, Op::all_to_all_v,
  };
  return std::find(kThese.begin(), kThese.end(), op) != kThese.end();
}

std::string_view name_of(Op op) {
  constexpr std::array<std::string_view, 22> kNames{
      "all_reduce",   "reduce",         "broadcast",  "all_gather",
      "all_gather_v", "reduce_scatter", "all_to_all", "gather",
      "gather_v",     "scatter",        "scatter_v",  "reduce_scatter_v",
      "all_to_all_v", "scan",           "exscan",     "sparse_all_reduce",
      "barrier",      "ring",           "exchange",   "train",
      "split",        "allocate"};
  return kNames[static_cast<std::size_t>(op)];
}

std::int64_t Step::elements(int ranks) const {
  return has_many_parts(op) ? (count + 1) * ranks : count;
}

std::string Step::describe() const {
  std::ostringstream text;
  text << name_of(op);
  if (op == Op::barrier || op == Op::split) return text.str();
  if (op == Op::train) {
    constexpr std::array<const char*, 5> kModes{"full", "half", "partial", "top_k", "threshold"};
    text << " " << kModes[static_cast<std::size_t>(mode)];
    return text.str();
  }
  constexpr std::array<const char*, 3> kPlaces{"", " symmetric", " staggered"};
  text << " " << count << " " << tutti::name_of(dtype) << " " << name_of(reduce.kind)
       << kPlaces[static_cast<std::size_t>(place)] << (in_place ? " in place" : "");
  if (root != 0) text << " root " << root;
  if (group != 0) text << " in split " << group;
  return text.str();
}

Step mistaken(const Step& step, std::uint64_t choice, int ranks) {
  Step other = step;
  if (step.op == Op::barrier) return {.op = Op::all_reduce, .count = 1};
  if (step.op == Op::allocate) {
    other.count += 5000;
    return other;
  }
  switch (choice % 4) {
    case 0:
      if (step.op == Op::sparse_all_reduce) break;
      other.dtype = step.dtype == DType::i32 ? DType::f32 : DType::i32;
      if (reduces(step.op)) other.reduce = Reduce::sum;
      return other;
    case 1:
      if (!reduces(step.op)) break;
      other.reduce = step.reduce.kind == ReduceKind::max ? Reduce::min : Reduce::max;
      return other;
    case 2:
      if (!has_root(step.op)) break;
      other.root = (step.root + 1) % ranks;
      return other;
    default:
      return {.op = Op::barrier};
  }
  other.count += 2;  // so that half of it is another number, too
  return other;
}

}  // namespace tutti::test
