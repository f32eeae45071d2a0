// Sparse vectors as dense ones.
#pragma once

#include <cstdint>

#include "tutti/dtype.hpp"
#include "tutti/sparse.hpp"

namespace tutti {

/** out = in, with zeros elsewhere. */
void scatter(const SparseView& in, const View& out);
/** Elements that are not zero. */
std::int64_t count_entries(const ConstView& vector);

}  // namespace tutti
