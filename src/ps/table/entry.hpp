// Which ids get a row.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ps/table/entry_counts.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

/** Decides for ids that have no row, by what it has counted for each of them. Not thread-safe. */
class Admission {
 public:
  explicit Admission(const TableIdentity& identity);

  /** Whether all get a row, without a look. */
  bool admits_all() const;
  /** Those of the ids at places `absent` of a push, which have no row, that get one now: their
   * places, in that order, until the next call. Takes memory for counting the others, but counts
   * nothing. Throws SystemError. */
  const std::vector<std::size_t>& choose(const RowUpdates& updates,
                                         std::span<const std::size_t> absent, std::int64_t step);
  /** Counts that push. What has got a row is counted no more. */
  void count();

  /** Null if the rule counts nothing. */
  EntryCounts* counts() { return counts_.get(); }
  const EntryCounts* counts() const { return counts_.get(); }
  /** Of memory. */
  std::int64_t bytes() const { return counts_ ? counts_->bytes() : 0; }

 private:
  Entry entry_;
  std::uint64_t seed_;
  std::unique_ptr<EntryCounts> counts_;
  std::vector<std::int64_t> ids_;
  std::vector<std::size_t> chosen_;
};

}  // namespace tutti::ps
