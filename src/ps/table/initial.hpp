// The values that a row has before its first push.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** The seed of a table's initial values: the job's, mixed with the table's name. */
std::uint64_t table_seed(std::uint64_t seed, const std::string& table);

/** Column j of the row of `id` = a function of (seed, id, j) alone, the same bits on every machine.
 */
void fill_initial(const Initial& initial, std::uint64_t seed, std::int64_t id, std::int64_t dim,
                  float* row);

}  // namespace tutti::ps
