// Takes memory for rows ahead of need.
#include "ps/table/rows.hpp"

#include <algorithm>
#include <cerrno>
#include <string>

#include "tutti/error.hpp"

namespace tutti::ps {

Rows::Rows(Arena& arena, const TableLayout& layout)
    : arena_(arena),
      dim_(layout.dim),
      state_floats_(layout.state_floats),
      most_rows_(layout.most_rows),
      weights_(reinterpret_cast<float*>(arena.base() + layout.weights_offset)),
      state_(reinterpret_cast<float*>(arena.base() + layout.state_offset)),
      history_(reinterpret_cast<RowHistory*>(arena.base() + layout.history_offset)),
      arrays_{{layout.weights_offset, dim_ * static_cast<std::int64_t>(sizeof(float))}} {
  if (state_floats_ > 0) {
    arrays_.push_back(
        {layout.state_offset, state_floats_ * static_cast<std::int64_t>(sizeof(float))});
  }
  if (layout.history_offset < layout.bytes) {
    arrays_.push_back({layout.history_offset, static_cast<std::int64_t>(sizeof(RowHistory))});
  }
}

void Rows::make_room(std::int64_t more) {
  const std::int64_t fresh = more - static_cast<std::int64_t>(released_.size());
  const std::int64_t rows = used_ + std::max<std::int64_t>(0, fresh);
  if (rows > most_rows_) {
    throw SystemError("there is no room for " + std::to_string(rows) +
                          " rows: " + std::to_string(most_rows_) + " are the most that fit",
                      ENOSPC);
  }
  for (Array& array : arrays_) {
    const std::int64_t bytes = round_up(rows * array.row_bytes, kHugePage);
    if (bytes <= array.taken) continue;
    arena_.take(array.offset + array.taken, bytes - array.taken);
    array.taken = bytes;
  }
}

std::uint32_t Rows::acquire() {
  if (released_.empty()) return static_cast<std::uint32_t>(used_++);
  const std::uint32_t row = released_.back();
  released_.pop_back();
  return row;
}

}  // namespace tutti::ps
