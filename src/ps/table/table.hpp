// One server's part of a table, in shared memory: what changes it, and what reads it meanwhile.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps/table/place.hpp"
#include "ps/table/rules.hpp"
#include "tutti/ps/server.hpp"
#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** Throws InvalidArgument for a table that makes no sense, naming it, the field and its value. */
void check(const TableSpec& spec);

/** What all who have a part of a table know of it. */
struct TableIdentity {
  TableSpec spec;
  std::uint64_t seed = 0;  ///< of initial values: the job's, mixed with the table's name
  int server = 0;
  int servers = 1;
};

/** One push to one server's part, or several that were merged. The ids are distinct. */
struct RowUpdates {
  std::span<const std::int64_t> ids;
  const float* values = nullptr;  ///< dim for each id
  float scale = 1.0F;             ///< multiplies these first
  const float* shows = nullptr;   ///< one for each id; null: none
  const float* clicks = nullptr;
};

/** A row as files have it. */
struct StoredRow {
  std::int64_t id;
  const float* weights;    ///< dim
  const float* state;      ///< state_floats() of its rule
  std::int64_t last_step;  ///< of the server, at the row's last push
  float shows;
  float clicks;
};

/** What an entry rule has counted for an id without a row, as files have it. */
struct StoredCount {
  std::int64_t id;
  std::int64_t last_step;  ///< of the server, at its last push; with max_age an eighth of it less
  double sum;              ///< of pushes, or of shows and clicks with their weights
};

/**
 * Reads rows that a Table of this or another process of the host may be changing, without telling
 * it: a reader that is killed or stopped holds nobody up. Safe from several threads.
 */
class TableReader {
 public:
  /** Maps what a Table has made under that name, for reading. Throws SystemError. */
  TableReader(const TableIdentity& identity, const std::string& segment);
  TableReader(const TableReader&) = delete;
  TableReader& operator=(const TableReader&) = delete;
  TableReader(TableReader&&) noexcept;
  TableReader& operator=(TableReader&&) noexcept;
  ~TableReader();

  /** Row of ids[i] to out + (positions.empty() ? i : positions[i]) * dim. Ids without a row have
   * their initial values, padding_idx has zeros. Returns how many rows could not be read whole
   * within 64 tries (with consistent_rows; else 0). */
  std::int64_t lookup(std::span<const std::int64_t> ids, std::span<const std::int64_t> positions,
                      float* out) const;
  /** Brings the cache lines of these rows near. */
  void prefetch(std::span<const std::int64_t> ids) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/**
 * The rows of one server, and the only one who changes them. Rows never move; a table grows shard
 * by shard, and readers of a shard that grows go on in the meantime. Not thread-safe, but for its
 * readers.
 *
 * What it throws leaves it as it was: memory for all rows of a push is there before any is changed.
 * Only with Eviction::max_bytes rows that the push does not touch may have gone to make way for it.
 */
class Table {
 public:
  /** Makes a shared memory object of that name, for TableReader; an empty name: private memory.
   * Throws InvalidArgument, SystemError. */
  Table(const TableIdentity& identity, const std::string& segment);
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;
  Table(Table&&) noexcept;
  Table& operator=(Table&&) noexcept;
  ~Table();

  const TableIdentity& identity() const;
  /** The name is needed no longer: all who read have opened it. */
  void unlink();

  /** The rule, on each row; rows that are not there are made, if the entry rule admits them. */
  void update(const RowUpdates& updates);
  /** row += scale * value, without a rule and without admission (GEO). */
  void add(const RowUpdates& updates);
  /** As lookup() of a reader. */
  std::int64_t lookup(std::span<const std::int64_t> ids, std::span<const std::int64_t> positions,
                      float* out) const;

  /** Counts a step of the server: ages, scores, and evictions that are due. */
  void step();
  std::int64_t steps() const;
  void set_steps(std::int64_t steps);
  TableStats stats() const;
  std::int64_t rows() const;

  // For files.

  /** The rows whose IdPlace::within is at least `first` and at most `last`, in that order. They are
   * where they are until the table changes. */
  std::vector<StoredRow> rows_between(std::uint64_t first, std::uint64_t last) const;
  /** A table is cut into kShards intervals of IdPlace::within. */
  static constexpr int kShards = 256;
  /** Calls visit for each row of a shard, in that order. */
  void for_each_row(int shard, const std::function<void(const StoredRow&)>& visit) const;
  /** Makes room in the index for so many more rows, and ids that are counted, whose hashes are
   * spread evenly, in whatever order they come. Throws SystemError. */
  void expect(std::int64_t rows, std::int64_t counts = 0);
  /** Puts rows there as they were stored, while nobody reads. Their ids are distinct. What is
   * counted for them is forgotten. All get memory, also beyond Eviction::max_bytes: those that are
   * too many go with the next push or step, but what they took stays for others. Throws SystemError
   * for want of memory. */
  void restore(std::span<const StoredRow> rows);

  /** How many ids without a row the entry rule has counted something for, */
  std::int64_t count_of_counts() const;
  /** what that is, of those in an interval of IdPlace::within, in that order, */
  std::vector<StoredCount> counts_between(std::uint64_t first, std::uint64_t last) const;
  /** and puts it there, of distinct ids; not if the rule counts nothing. Throws SystemError. */
  void restore(std::span<const StoredCount> counts);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti::ps
