// Checks of the arguments of collectives: refused by name and value, before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tutti/dtype.hpp"
#include "tutti/sparse.hpp"
#include "tutti/transport.hpp"

namespace tutti {

/** A view that can be used: not negative, not null, on the CPU or on a GPU that is there. */
void check_view(std::string_view name, const ConstView& view);
/** A number of elements: not negative, and small enough to be added up and counted in bytes. */
void check_count_range(std::string_view name, std::int64_t count);
/** A rank of a communicator of `size` ranks. */
void check_rank(std::string_view name, int rank, int size);
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
/** A reduction that `dtype` can do. */
void check_reduce(const Reduce& reduce, DType dtype);
/**
 * `in` and `out` do not overlap, unless the shorter one lies exactly at element `offset` of the
 * longer one.
 */
void check_overlap(const ConstView& in, const ConstView& out, std::int64_t offset);
/** `a` and `b` do not overlap at all. */
void check_apart(std::string_view a_name, const ConstView& a, std::string_view b_name,
                 const ConstView& b);
/** The sum or the average. */
void check_sparse_reduce(const Reduce& reduce);
/** Indices ascend strictly below out.count, and neither they nor the values overlap with `out`. */
void check_sparse(const SparseView& in, const View& out);

}  // namespace tutti
