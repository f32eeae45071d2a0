// Which rows of a table go again, and when.
#pragma once

#include <cstdint>
#include <map>

#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** What is known of a row's pushes, where entry or eviction want to know it. */
struct RowHistory {
  std::int64_t last_step = 0;  ///< of the server, at the row's last push
  float shows = 0.0F;          ///< so far, faded by Eviction::decay
  float clicks = 0.0F;
};

/**
 * Eviction, as arithmetic: the table asks after each step what is due, and goes over its rows if
 * anything is. All rows are looked at in the same step, whichever server has them, so that the
 * number of servers changes nothing (but for the share of max_bytes that each has).
 */
class EvictionPolicy {
 public:
  /** `bytes_per_row`: of memory, all told. */
  EvictionPolicy(const TableSpec& spec, int servers, std::int64_t bytes_per_row);

  /** Whether rows need a RowHistory. */
  static bool keeps_history(const TableSpec& spec);

  /** Rows are looked at for their age eight times in max_age steps: a row goes at the latest when
   * it is an eighth older than that. */
  bool ages_due(std::int64_t step) const;
  bool too_old(const RowHistory& row, std::int64_t step) const;

  bool scores_due(std::int64_t step) const;
  /** Fades a row's shows and clicks. True: its score is too low. */
  bool fade(RowHistory& row) const;

  /** How many rows have to go so that as many as one server may have, less a sixteenth, are left;
   * 0 while there are not too many. */
  std::int64_t surplus(std::int64_t rows) const;

 private:
  Eviction eviction_;
  AdmitShowClick score_;
  std::int64_t most_rows_;  // 0: any number
};

/** Chooses the rows that were not pushed for longest. First every row is counted, then goes() is
 * asked of every row, in any order that is the same on all machines. */
class LeastRecent {
 public:
  explicit LeastRecent(std::int64_t surplus) : surplus_(surplus) {}

  void count(const RowHistory& row) { ++counts_[row.last_step]; }
  bool goes(const RowHistory& row);

 private:
  std::map<std::int64_t, std::int64_t> counts_;  // of rows that were last pushed in a step
  std::int64_t surplus_;
  bool counted_ = false;
};

}  // namespace tutti::ps
