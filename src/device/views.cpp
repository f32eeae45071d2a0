// Refuses views by name and value.
#include "device/views.hpp"

#include <cstddef>
#include <functional>
#include <string>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "tutti/device.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

// Far above any memory; times the bytes of an element and the number of ranks it fits 64 bits.
constexpr std::int64_t kMostCount = std::int64_t{1} << 44;

}  // namespace

bool are_apart(const ConstView& a, const ConstView& b) {
  if (a.count == 0 || b.count == 0) return true;
  const auto* a_begin = static_cast<const std::byte*>(a.data);
  const auto* b_begin = static_cast<const std::byte*>(b.data);
  const std::less_equal<> not_after;
  return not_after(a_begin + a.bytes(), b_begin) || not_after(b_begin + b.bytes(), a_begin);
}

void check_view(std::string_view name, const ConstView& view) {
  if (static_cast<int>(view.dtype) >= kDTypeCount) {
    refuse(name, ".dtype is ", static_cast<int>(view.dtype), ", which is no DType");
  }
  if (view.count < 0 || view.count > kMostCount) {
    check_count_range(std::string(name) + ".count", view.count);  // the name is made when needed
  }
  if (view.data == nullptr && view.count > 0) {
    refuse(name, ".data is null, but ", name, ".count is ", view.count);
  }
  if (view.device.kind == DeviceKind::cpu) return;
  if (gpu_count() == 0) {
    throw BackendUnavailable(std::string(name) +
                             ".device is a GPU, but there is none that this process can use");
  }
  if (view.device.ordinal < 0 || view.device.ordinal >= gpu_count()) {
    refuse(name, ".device.ordinal is ", view.device.ordinal, ", but must be from 0 to ",
           gpu_count() - 1);
  }
}

void check_count_range(std::string_view name, std::int64_t count) {
  if (count < 0 || count > kMostCount) refuse(name, " is ", count, ", but must be from 0 to 2^44");
}

void check_same_dtype(const ConstView& in, const ConstView& out) {
  if (in.dtype != out.dtype) {
    refuse("in.dtype is ", name_of(in.dtype), ", but out.dtype is ", name_of(out.dtype));
  }
}

void check_dtype(std::string_view name, const ConstView& view, DType expected) {
  if (view.dtype == expected) return;
  refuse(name, ".dtype is ", name_of(view.dtype), ", but must be ", name_of(expected));
}

void check_on_cpu(std::string_view name, const ConstView& view) {
  if (view.device.kind == DeviceKind::cpu) return;
  refuse(name, " is in memory of ", device_text(view.device), ", but must be on the CPU");
}

void check_same_device(const ConstView& in, const ConstView& out) {
  if (in.device != out.device) {
    refuse("in.device is ", device_text(in.device), ", but out.device is ",
           device_text(out.device));
  }
}

void check_count(std::string_view name, const ConstView& view, std::int64_t expected,
                 std::string_view meaning) {
  if (view.count != expected) {
    refuse(name, ".count is ", view.count, ", but must be ", expected, ": ", meaning);
  }
}

void check_overlap(const ConstView& in, const ConstView& out, std::int64_t offset) {
  if (are_apart(in, out)) return;
  const auto* in_begin = static_cast<const std::byte*>(in.data);
  const auto* out_begin = static_cast<const std::byte*>(out.data);
  const std::int64_t distance = offset * size_of(in.dtype);
  const bool in_is_shorter = in.count <= out.count;
  if (in_is_shorter ? in_begin == out_begin + distance : out_begin == in_begin + distance) return;
  refuse("in (", in.bytes(), " bytes at ", in.data, ") and out (", out.bytes(), " bytes at ",
         out.data, ") overlap in part");
}

void check_apart(std::string_view a_name, const ConstView& a, std::string_view b_name,
                 const ConstView& b) {
  if (are_apart(a, b)) return;
  refuse(a_name, " (", a.bytes(), " bytes at ", a.data, ") and ", b_name, " (", b.bytes(),
         " bytes at ", b.data, ") overlap");
}

}  // namespace tutti
