// Checks of the arguments of collectives: refused by name and value, before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tutti/dtype.hpp"
#include "tutti/transport.hpp"

namespace tutti {

/** A view that can be used: not negative, not null, on the CPU. */
void check_view(std::string_view name, const ConstView& view);
/** A number of elements: not negative, and small enough to be added up and counted in bytes. */
void check_count_range(std::string_view name, std::int64_t count);
/** A rank of a communicator of `size` ranks. */
void check_rank(std::string_view name, int rank, int size);
/** The same dtype on both sides. */
void check_same_dtype(const ConstView& in, const ConstView& out);
/** `view` has `expected` elements, which is what `meaning` says. */
void check_count(std::string_view name, const ConstView& view, std::int64_t expected,
                 std::string_view meaning);
/** A reduction that `dtype` can do. */
void check_reduce(const Reduce& reduce, DType dtype);
/**
 * `in` and `out` do not overlap, unless the shorter one lies exactly at element `offset` of the
 * longer one.
 */
void check_overlap(const ConstView& in, const ConstView& out, std::int64_t offset);

}  // namespace tutti
