// Takes memory for rows ahead of need.
#include "ps/table/rows.hpp"

#include <algorithm>
#include <cerrno>
#include <string>

#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

constexpr auto kStateElement = static_cast<std::int64_t>(sizeof(float));
constexpr auto kHistoryBytes = static_cast<std::int64_t>(sizeof(RowHistory));

std::int64_t state_bytes(const TableLayout& layout, const RowExtras& extras) {
  return round_up(layout.most_rows * extras.state_floats * kStateElement, kHugePage);
}

/** Of addresses. */
std::int64_t own_bytes(const TableLayout& layout, const RowExtras& extras) {
  const std::int64_t history = extras.has_history ? layout.most_rows * kHistoryBytes : 0;
  const std::int64_t bytes = state_bytes(layout, extras) + round_up(history, kHugePage);
  return std::max(bytes, kHugePage);  // none cannot be mapped
}

}  // namespace

Rows::Rows(Arena& shared, const TableLayout& layout, const RowExtras& extras)
    : dim_(layout.dim),
      extras_(extras),
      most_rows_(layout.most_rows),
      own_("", own_bytes(layout, extras)),
      weights_(reinterpret_cast<float*>(shared.base() + layout.weights_offset)),
      state_(reinterpret_cast<float*>(own_.base())),
      history_(reinterpret_cast<RowHistory*>(own_.base() + state_bytes(layout, extras))),
      arrays_{{&shared, layout.weights_offset, dim_ * kStateElement}} {
  if (extras.state_floats > 0) arrays_.push_back({&own_, 0, extras.state_floats * kStateElement});
  if (extras.has_history) arrays_.push_back({&own_, state_bytes(layout, extras), kHistoryBytes});
  own_.keep_from_children();
}

std::int64_t Rows::bytes_of(std::int64_t rows, std::int64_t dim, const RowExtras& extras) {
  std::int64_t bytes = 0;
  for (const std::int64_t row_bytes : {dim * kStateElement, extras.state_floats * kStateElement,
                                       extras.has_history ? kHistoryBytes : 0}) {
    bytes += round_up(rows * row_bytes, kHugePage);
  }
  return bytes;
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
    array.arena->take(array.offset + array.taken, bytes - array.taken);
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
