// What has been counted for ids that have no row yet.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ps/table/arena.hpp"
#include "ps/table/index.hpp"
#include "ps/table/shards.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

/**
 * A number for each id, exactly, in an index as rows have it, whose slots hold the number itself:
 * 22 to 29 bytes an id, of the most that it has had at once, in private memory, and shards that
 * grow one by one. With Eviction::max_age ids are forgotten that were not pushed for more steps
 * than that, at the latest when half as many again and one have gone by. Not thread-safe.
 */
class EntryCounts {
 public:
  explicit EntryCounts(const TableIdentity& identity);

  /** Finds what these ids have, which are distinct; 0 is what the others have. */
  void find(std::span<const std::int64_t> ids, std::int64_t step);
  /** Of the i-th of these ids: to be changed, and then kept. */
  double& sum(std::size_t i) { return found_[i].sum; }
  /** Takes memory for what is to be kept. Throws SystemError; nothing has changed then. */
  void make_room();
  /** Keeps the sums that are not 0 as of that step, and forgets the other ids. */
  void keep();

  /** Forgets the ids in that interval of IdPlace::within that are too old. */
  void forget_old(const Interval& within, std::int64_t step);
  std::int64_t count() const { return shards_.count(); }
  /** Of memory. */
  std::int64_t bytes() const { return arena_.taken(); }

  // For files.

  /** Makes room for so many more ids, whose hashes are spread evenly. Throws SystemError. */
  void expect(std::int64_t ids) { shards_.expect(ids); }
  /** In the order of IdPlace::within. */
  std::vector<StoredCount> between(std::uint64_t first, std::uint64_t last,
                                   std::int64_t step) const;
  /** Throws SystemError. */
  void restore(std::span<const StoredCount> stored, std::int64_t step);

 private:
  struct Found {
    Slot* slot = nullptr;
    double sum = 0;
    std::int64_t step = 0;  ///< of the push
  };

  void locate();
  /** Steps are told apart by periods, of which max_age has eight or, if it is short, fewer than
   * 16. */
  std::int64_t period_of(std::int64_t step) const { return period_ == 0 ? 0 : step / period_; }
  std::uint64_t word_of(const Found& found) const;
  /** How many periods ago an id was pushed. */
  std::int64_t age_of(std::uint64_t word, std::int64_t step) const;
  bool is_old(std::int64_t age) const { return age > most_age_; }

  const std::int64_t period_;    ///< in steps; 0: nothing is ever too old
  const std::int64_t most_age_;  ///< in periods
  TableLayout layout_;
  Arena arena_;
  Shards shards_;
  std::vector<std::int64_t> ids_;
  std::vector<Found> found_;
};

}  // namespace tutti::ps
