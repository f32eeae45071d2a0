// The rows of a table: weights, the state of their rule, and their history, in arrays.
#pragma once

#include <cstdint>
#include <vector>

#include "ps/table/arena.hpp"
#include "ps/table/eviction.hpp"
#include "ps/table/index.hpp"
#include "ps/table/row_access.hpp"

namespace tutti::ps {

/** A row keeps its number, and its place, until it is released. */
class Rows {
 public:
  Rows(Arena& arena, const TableLayout& layout);

  float* weights(std::uint32_t row) const { return weights_ + row * dim_; }
  float* state(std::uint32_t row) const { return state_ + row * state_floats_; }
  /** Only where the table keeps one. */
  RowHistory& history(std::uint32_t row) const { return history_[row]; }
  std::int64_t count() const { return used_ - static_cast<std::int64_t>(released_.size()); }

  /** Brings a row near that is to be changed. */
  void prefetch(std::uint32_t row) const {
    prefetch_row(weights(row), dim_);
    if (state_floats_ > 0) prefetch_row(state(row), state_floats_);
  }

  /** Makes room for so many more rows. Throws SystemError; nothing has changed then. */
  void make_room(std::int64_t more);
  /** A row, for which there is room; what is in it is left from others. */
  std::uint32_t acquire();
  void release(std::uint32_t row) { released_.push_back(row); }

 private:
  /** An array of the arena, of which the first bytes have memory. */
  struct Array {
    std::int64_t offset;
    std::int64_t row_bytes;
    std::int64_t taken = 0;
  };

  Arena& arena_;
  std::int64_t dim_;
  std::int64_t state_floats_;
  std::int64_t most_rows_;
  float* weights_;
  float* state_;
  RowHistory* history_;
  std::vector<Array> arrays_;
  std::vector<std::uint32_t> released_;
  std::int64_t used_ = 0;  ///< rows that have been acquired at least once
};

}  // namespace tutti::ps
