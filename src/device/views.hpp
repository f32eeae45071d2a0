// Checks of views of memory: refused by name and value.
#pragma once

#include <cstdint>
#include <string_view>

#include "tutti/dtype.hpp"

namespace tutti {

/** A view that can be used: not negative, not null, on the CPU or on a GPU that is there. */
void check_view(std::string_view name, const ConstView& view);
/** A number of elements: not negative, and small enough to be added up and counted in bytes. */
void check_count_range(std::string_view name, std::int64_t count);
/** The same dtype on both sides. */
void check_same_dtype(const ConstView& in, const ConstView& out);
void check_dtype(std::string_view name, const ConstView& view, DType expected);
/** In memory of the CPU. */
void check_on_cpu(std::string_view name, const ConstView& view);
/** Both in memory of the same device. */
void check_same_device(const ConstView& in, const ConstView& out);
/** `view` has `expected` elements, which is what `meaning` says. */
void check_count(std::string_view name, const ConstView& view, std::int64_t expected,
                 std::string_view meaning);
/**
 * `in` and `out` do not overlap, unless the shorter one lies exactly at element `offset` of the
 * longer one.
 */
void check_overlap(const ConstView& in, const ConstView& out, std::int64_t offset);
/** Whether `a` and `b` do not overlap at all. */
bool are_apart(const ConstView& a, const ConstView& b);
/** are_apart(). */
void check_apart(std::string_view a_name, const ConstView& a, std::string_view b_name,
                 const ConstView& b);

}  // namespace tutti
