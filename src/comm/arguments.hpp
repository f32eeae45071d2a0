// Checks of the arguments of collectives: refused by name and value, before anything is sent.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "device/views.hpp"
#include "tutti/dtype.hpp"
#include "tutti/sparse.hpp"
#include "tutti/transport.hpp"

namespace tutti {

/** A rank of a communicator of `size` ranks. */
void check_rank(std::string_view name, int rank, int size);
/** One number of elements for each of `size` ranks, and their sum. */
std::int64_t check_counts(std::string_view name, std::span<const std::int64_t> counts, int size);
/** A reduction whose partial results are results: not the average. */
void check_scan_reduce(const Reduce& reduce, const ConstView& in);
/** A reduction that `dtype` has, on GPUs if it is NCCL's as well. */
void check_reduce(const Reduce& reduce, DType dtype, Device device = {});
/** The sum or the average. */
void check_sparse_reduce(const Reduce& reduce);
/** Indices ascend strictly below out.count, and neither they nor the values overlap with `out`. */
void check_sparse(const SparseView& in, const View& out);

}  // namespace tutti
