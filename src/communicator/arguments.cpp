// The refusals, in words.
#include "communicator/arguments.hpp"

#include <cmath>
#include <functional>
#include <sstream>
#include <string>

#include "tutti/error.hpp"

namespace tutti {
namespace {

template <class... Parts>
[[noreturn]] void refuse(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw InvalidArgument(text.str());
}

bool is_integer(DType dtype) {
  return dtype == DType::i32 || dtype == DType::i64 || dtype == DType::u8;
}

}  // namespace

void check_view(std::string_view name, const ConstView& view) {
  if (static_cast<int>(view.dtype) >= kDTypeCount) {
    refuse(name, ".dtype is ", static_cast<int>(view.dtype), ", which is no DType");
  }
  check_count_range(std::string(name) + ".count", view.count);
  if (view.data == nullptr && view.count > 0) {
    refuse(name, ".data is null, but ", name, ".count is ", view.count);
  }
  if (view.device.kind != DeviceKind::cpu) {
    throw BackendUnavailable(std::string(name) +
                             ".device is a GPU, but this build has no backend for it");
  }
}

void check_count_range(std::string_view name, std::int64_t count) {
  // Far above any memory; times the bytes of an element and the number of ranks it fits 64 bits.
  constexpr std::int64_t kMost = std::int64_t{1} << 44;
  if (count < 0 || count > kMost) refuse(name, " is ", count, ", but must be from 0 to 2^44");
}

void check_rank(std::string_view name, int rank, int size) {
  if (rank < 0 || rank >= size) {
    refuse(name, " is ", rank, ", but the ranks are 0 to ", size - 1);
  }
}

void check_same_dtype(const ConstView& in, const ConstView& out) {
  if (in.dtype != out.dtype) {
    refuse("in.dtype is ", name_of(in.dtype), ", but out.dtype is ", name_of(out.dtype));
  }
}

void check_count(std::string_view name, const ConstView& view, std::int64_t expected,
                 std::string_view meaning) {
  if (view.count != expected) {
    refuse(name, ".count is ", view.count, ", but must be ", expected, ": ", meaning);
  }
}

void check_reduce(const Reduce& reduce, DType dtype) {
  if (static_cast<int>(reduce.kind) >= kReduceKindCount) {
    refuse("reduce.kind is ", static_cast<int>(reduce.kind), ", which is no ReduceKind");
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

void check_overlap(const ConstView& in, const ConstView& out, std::int64_t offset) {
  if (in.count == 0 || out.count == 0) return;
  const auto* in_begin = static_cast<const std::byte*>(in.data);
  const auto* out_begin = static_cast<const std::byte*>(out.data);
  const std::less_equal<> not_after;
  if (not_after(in_begin + in.bytes(), out_begin) || not_after(out_begin + out.bytes(), in_begin)) {
    return;
  }
  const std::int64_t distance = offset * size_of(in.dtype);
  const bool in_is_shorter = in.count <= out.count;
  if (in_is_shorter ? in_begin == out_begin + distance : out_begin == in_begin + distance) return;
  refuse("in (", in.bytes(), " bytes at ", in.data, ") and out (", out.bytes(), " bytes at ",
         out.data, ") overlap in part");
}

}  // namespace tutti
