// How much memory the rows of a table take, and how many there may be.
#pragma once

#include <cstdint>

#include "ps/table/index.hpp"
#include "ps/table/rows.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

/** The addresses of a table, whose memory can have so many bytes. */
TableLayout table_layout(const TableSpec& spec, std::int64_t most_bytes);
RowExtras extras_of(const TableSpec& spec);

/** How many rows fit into a server's share of max_bytes; 0: not one. */
std::int64_t most_rows(const TableIdentity& identity);

/** The identity of a table that makes sense, and can have a row. Throws InvalidArgument. */
TableIdentity checked_identity(const TableIdentity& identity);

}  // namespace tutti::ps
