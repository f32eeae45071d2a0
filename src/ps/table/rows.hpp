// The rows of a table: weights, the state of their rule, and their history, in arrays.
#pragma once

#include <cstdint>
#include <vector>

#include "ps/table/arena.hpp"
#include "ps/table/eviction.hpp"
#include "ps/table/index.hpp"
#include "ps/table/row_access.hpp"

namespace tutti::ps {

/** What a row has beside its weights. */
struct RowExtras {
  std::int64_t state_floats = 0;
  bool has_history = false;
};

/**
 * A row keeps its number, and its place, until it is released. Weights lie in the memory that the
 * table shares with its readers; state and history, which they do not read, in private memory: more
 * than /dev/shm can hold.
 */
class Rows {
 public:
  Rows(Arena& shared, const TableLayout& layout, const RowExtras& extras);

  float* weights(std::uint32_t row) const { return weights_ + row * dim_; }
  float* state(std::uint32_t row) const { return state_ + row * extras_.state_floats; }
  std::int64_t state_floats() const { return extras_.state_floats; }
  /** Only where the table keeps one. */
  RowHistory& history(std::uint32_t row) const { return history_[row]; }
  std::int64_t count() const { return used_ - static_cast<std::int64_t>(released_.size()); }
  /** What so many rows take, weights included. */
  static std::int64_t bytes_of(std::int64_t rows, std::int64_t dim, const RowExtras& extras);
  /** Of private memory, in bytes. */
  std::int64_t taken() const { return own_.taken(); }
  /** Whether all private memory has huge pages that can have them. */
  bool has_huge_pages() const { return own_.has_huge_pages().value_or(true); }

  /** Brings a row near that is to be changed. */
  void prefetch(std::uint32_t row) const {
    prefetch_row(weights(row), dim_);
    if (extras_.state_floats > 0) prefetch_row(state(row), extras_.state_floats);
    if (extras_.has_history) __builtin_prefetch(&history(row));
  }

  /** Makes room for so many more rows. Throws SystemError; nothing has changed then. */
  void make_room(std::int64_t more);
  /** A row, for which there is room; what is in it is left from others. */
  std::uint32_t acquire();
  void release(std::uint32_t row) { released_.push_back(row); }

 private:
  /** An array of an arena, of which the first bytes have memory. */
  struct Array {
    Arena* arena;
    std::int64_t offset;
    std::int64_t row_bytes;
    std::int64_t taken = 0;
  };

  std::int64_t dim_;
  RowExtras extras_;
  std::int64_t most_rows_;
  Arena own_;
  float* weights_;
  float* state_;
  RowHistory* history_;
  std::vector<Array> arrays_;
  std::vector<std::uint32_t> released_;
  std::int64_t used_ = 0;  ///< rows that have been acquired at least once
};

}  // namespace tutti::ps
