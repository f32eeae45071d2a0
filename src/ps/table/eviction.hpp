// Which rows of a table go again, and when.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "ps/table/place.hpp"
#include "tutti/ps/table.hpp"

namespace tutti::ps {

struct Slot;

/** What is known of a row's pushes, where entry or eviction want to know it. */
struct RowHistory {
  std::int64_t last_step = 0;  ///< of the server, at the row's last push
  float shows = 0.0F;          ///< so far, faded by Eviction::decay
  float clicks = 0.0F;
};

/**
 * Eviction, as arithmetic: the table asks after each step what is due, and goes over those rows.
 * Rows are looked at in slices, one after the other, so that no step takes long: by the hashes of
 * their ids, so that the number of servers changes nothing. With max_bytes each shard of a large
 * table has its share, as each server has: of rows, not of bytes as they were taken, which depend
 * on how the table came to what it has.
 */
class EvictionPolicy {
 public:
  /** `most_rows`: with max_bytes, that this server may have. */
  EvictionPolicy(const TableSpec& spec, std::int64_t most_rows);

  /** Whether rows need a RowHistory. */
  static bool keeps_history(const TableSpec& spec);

  /** In how many steps all are looked at once. */
  static std::int64_t steps_of_slices(std::int64_t max_age) {
    return std::max<std::int64_t>(1, max_age / 8);
  }
  /** The hashes of ids whose rows are looked at after this step, for their age: each eight times in
   * max_age steps, so that it goes at the latest when it is an eighth older than that. */
  Interval ages_due(std::int64_t step) const;
  bool too_old(const RowHistory& row, std::int64_t step) const;

  Interval scores_due(std::int64_t step) const;
  /** Fades a row's shows and clicks. True: its score is too low. */
  bool fade(RowHistory& row) const;

  /** Whether max_bytes is set. */
  bool limits_rows() const { return most_rows_ > 0; }
  /** Whether max_bytes holds for each shard by itself, and not for all rows of the server. */
  bool by_shards() const { return most_rows_ >= kManyRows; }
  /** How many rows have to go so that as many as one server may have, less a sixteenth, are left; 0
   * while there are not too many. */
  std::int64_t surplus(std::int64_t rows) const {
    return surplus(rows, most_rows_, most_rows_ / 16);
  }
  /** The same of a shard after a step. Since all grow alike, all would have too many in the same
   * step: so they take turns, in which half of that sixteenth is too many. That spreads them as
   * long as they grow by no more than that half from turn to turn; those that grow faster may be
   * full before their turn, many in the same step. */
  std::int64_t surplus_of(int shard, std::int64_t rows, std::int64_t step) const;

 private:
  static std::int64_t surplus(std::int64_t rows, std::int64_t most, std::int64_t spare) {
    return most == 0 || rows <= most ? 0 : rows - (most - spare);
  }

  /** So many are looked at in about 16 ms. */
  static constexpr std::int64_t kManyRows = std::int64_t{1} << 18U;
  /** Steps until it is a shard's turn again. */
  static constexpr std::int64_t kTurns = 16;

  Eviction eviction_;
  AdmitShowClick score_;
  std::int64_t most_rows_;  // 0: any number
};

/** A row that may go for others. */
struct Candidate {
  std::int64_t last_step;  ///< as RowHistory has it
  std::uint64_t within;    ///< IdPlace::within
  std::uint32_t row;
  Slot* slot;
};

/** Leaves those `surplus` that were not pushed for longest, of rows that were last pushed in the
 * same step the first: in the order of `within`, whatever their order was. */
void choose_least_recent(std::vector<Candidate>& rows, std::int64_t surplus);

}  // namespace tutti::ps
