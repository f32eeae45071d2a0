// Refuses ranks, reductions and sparse vectors by name and value.
#include "comm/arguments.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/refuse.hpp"
#include "base/text.hpp"

namespace tutti {
namespace {

/** Between GPUs there is what NCCL has: no reduction of 16-bit integers, of booleans what the
 * least or the greatest byte tells, and nothing bitwise or logical of numbers. */
bool has_reduction(DType dtype, ReduceKind kind, Device device) {
  if (!tutti::has_reduction(dtype, kind)) return false;
  if (device.kind == DeviceKind::cpu) return true;
  if (dtype == DType::i16 || dtype == DType::u16) return false;
  if (dtype == DType::boolean) return kind != ReduceKind::bxor && kind != ReduceKind::lxor;
  return tutti::has_reduction(DType::f32, kind);
}

/** "sum, min, max", ...: all reductions that there are, or "none". */
std::string reductions_of(DType dtype, Device device) {
  std::string names;
  for (int i = 0; i < kReduceKindCount; ++i) {
    const auto kind = static_cast<ReduceKind>(i);
    if (!has_reduction(dtype, kind, device)) continue;
    if (!names.empty()) names += ", ";
    names += name_of(kind);
  }
  return names.empty() ? "none" : names;
}

/** The first i for which indices[i] is not more than the one before; `count` if there is none. */
std::int64_t first_out_of_order(const std::uint32_t* indices, std::int64_t count) {
  constexpr std::int64_t kBlock = 1024;  // without a branch inside, so that vectors compare
  for (std::int64_t begin = 1; begin < count; begin += kBlock) {
    const std::int64_t end = std::min(begin + kBlock, count);
    std::uint32_t wrong = 0;
    for (std::int64_t i = begin; i < end; ++i) wrong |= indices[i] <= indices[i - 1] ? 1U : 0U;
    if (wrong == 0) continue;
    for (std::int64_t i = begin; i < end; ++i) {
      if (indices[i] <= indices[i - 1]) return i;
    }
  }
  return count;
}

}  // namespace

void check_rank(std::string_view name, int rank, int size) {
  if (rank < 0 || rank >= size) {
    refuse(name, " is ", rank, ", but the ranks are 0 to ", size - 1);
  }
}

void check_reduce(const Reduce& reduce, DType dtype, Device device) {
  if (static_cast<int>(reduce.kind) >= kReduceKindCount) {
    refuse("reduce.kind is ", static_cast<int>(reduce.kind), ", which is no ReduceKind");
  }
  if (!has_reduction(dtype, reduce.kind, device)) {
    refuse("reduce.kind is ", name_of(reduce.kind), ", but ", name_of(dtype), " on ",
           device_text(device), " has only ", reductions_of(dtype, device));
  }
  if (reduce.kind != ReduceKind::premul_sum) {
    if (reduce.factor != 1.0)
      refuse("reduce.factor is ", reduce.factor, ", but only premul_sum has one");
    return;
  }
  constexpr double kWhole = 0x1p53;  // whole numbers up to here are exact
  if (is_integer(dtype) &&
      (std::trunc(reduce.factor) != reduce.factor || std::abs(reduce.factor) > kWhole)) {
    refuse("reduce.factor is ", reduce.factor, ", but must be a whole number for ", name_of(dtype));
  }
}

std::int64_t check_counts(std::string_view name, std::span<const std::int64_t> counts, int size) {
  if (counts.size() != static_cast<std::size_t>(size)) {
    refuse(name, " has ", counts.size(), " elements, but there are ", size, " ranks");
  }
  std::int64_t total = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    check_count_range(std::string(name) + "[" + std::to_string(i) + "]", counts[i]);
    total += counts[i];
  }
  return total;
}

void check_scan_reduce(const Reduce& reduce, const ConstView& in) {
  check_reduce(reduce, in.dtype, in.device);
  if (reduce.kind == ReduceKind::average) {
    refuse("reduce.kind is average, but a scan combines a different number of ranks on each");
  }
}

void check_sparse_reduce(const Reduce& reduce) {
  check_reduce(reduce, DType::f32);
  if (reduce.kind == ReduceKind::sum || reduce.kind == ReduceKind::average) return;
  refuse("reduce.kind is ", name_of(reduce.kind), ", but sparse vectors have only sum and average");
}

void check_sparse(const SparseView& in, const View& out) {
  if (out.count > kMostSparse) refuse("out.count is ", out.count, ", but indices have 32 bits");
  if (in.count < 0 || in.count > out.count) {
    refuse("in.count is ", in.count, ", but must be from 0 to out.count, ", out.count);
  }
  if (in.count == 0) return;
  if (in.indices == nullptr || in.values == nullptr) {
    refuse(in.indices == nullptr ? "in.indices" : "in.values", " is null, but in.count is ",
           in.count);
  }
  const std::int64_t at = first_out_of_order(in.indices, in.count);
  if (at < in.count) {
    refuse("in.indices[", at, "] is ", in.indices[at], " after ", in.indices[at - 1],
           ", but indices must ascend");
  }
  if (in.indices[in.count - 1] >= out.count) {
    refuse("in.indices[", in.count - 1, "] is ", in.indices[in.count - 1],
           ", but must be less than out.count, ", out.count);
  }
  check_apart("in.indices", {in.indices, in.count, DType::i32}, "out", out);
  check_apart("in.values", {in.values, in.count, DType::f32}, "out", out);
}

}  // namespace tutti
