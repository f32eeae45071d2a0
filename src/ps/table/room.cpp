// Reckons how many rows fit into how much memory.
#include "ps/table/room.hpp"

#include <algorithm>

#include "base/huge_pages.hpp"
#include "base/refuse.hpp"
#include "ps/table/eviction.hpp"
#include "ps/table/rules.hpp"
#include "ps/table/shards.hpp"

namespace tutti::ps {
namespace {

/** Numbers of rows have 32 bits, of which two values mean something else. */
constexpr std::int64_t kMostRows = (std::int64_t{1} << 32U) - 2;

/** That so many rows of a server take at most, all told. */
std::int64_t memory_of(std::int64_t rows, const TableSpec& spec) {
  return Shards::most_bytes(rows) + Rows::bytes_of(rows, spec.dim, extras_of(spec));
}

}  // namespace

TableLayout table_layout(const TableSpec& spec, std::int64_t most_bytes) {
  constexpr auto kFloatBytes = static_cast<std::int64_t>(sizeof(float));
  TableLayout layout;
  layout.dim = spec.dim;
  layout.most_rows = std::clamp<std::int64_t>(most_bytes / (spec.dim * kFloatBytes), 1, kMostRows);
  if (spec.dict_size > 0) layout.most_rows = std::min(layout.most_rows, spec.dict_size);
  layout.array_bytes = Shards::array_bytes(layout.most_rows);
  layout.index_offset = round_up(sizeof(TableHeader), kHugePage);
  layout.weights_offset =
      round_up(layout.index_offset + Shards::range_bytes(layout.array_bytes), kHugePage);
  layout.bytes =
      layout.weights_offset + round_up(layout.most_rows * spec.dim * kFloatBytes, kHugePage);
  return layout;
}

RowExtras extras_of(const TableSpec& spec) {
  return {.state_floats = state_floats(spec.rule, spec.dim),
          .has_history = EvictionPolicy::keeps_history(spec)};
}

std::int64_t most_rows(const TableIdentity& identity) {
  const std::int64_t share = identity.spec.eviction.max_bytes / identity.servers;
  std::int64_t fit = 0;
  std::int64_t too_many = std::min(share, kMostRows) + 1;
  while (fit + 1 < too_many) {
    const std::int64_t middle = fit + (too_many - fit) / 2;
    (memory_of(middle, identity.spec) <= share ? fit : too_many) = middle;
  }
  return fit;
}

TableIdentity checked_identity(const TableIdentity& identity) {
  check(identity.spec);
  const std::int64_t max_bytes = identity.spec.eviction.max_bytes;
  if (max_bytes > 0 && most_rows(identity) == 0) {
    refuse("table '", identity.spec.name, "': max_bytes of the eviction is ", max_bytes,
           ", but must be at least ", identity.servers * memory_of(1, identity.spec),
           ", with which each server can have a row");
  }
  return identity;
}

}  // namespace tutti::ps
