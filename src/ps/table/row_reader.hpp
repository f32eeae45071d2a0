// Reads rows of a table that another thread or process may be changing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ps/table/index.hpp"
#include "ps/table/row_access.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

/** The look-ups of TableReader and Table, over memory that one of them has mapped. */
class RowReader {
 public:
  /** Both outlive it. */
  RowReader(const TableIdentity& identity, std::byte* base);

  std::int64_t lookup(std::span<const std::int64_t> ids, std::span<const std::int64_t> positions,
                      float* out) const;
  void prefetch(std::span<const std::int64_t> ids) const;

  /** Copies what was found. False unless that was a row of that id, and is whole. */
  bool copy(const IndexResult& result, float* row) const;

 private:
  /** Calls done(i, result) for each id when its row is near. */
  template <class IsDone>
  void search(std::span<const std::int64_t> ids, const IsDone& done) const {
    const auto fetch = [&](std::uint64_t word) { prefetch_row(weights(word), dim_); };
    search_index(index_, ids, fetch, done);
  }
  bool is_padding(std::int64_t id) const { return identity_.spec.padding_idx == id; }
  /** One id, as often as it takes. False if the row was never whole. */
  bool lookup_again(std::int64_t id, float* row) const;
  const float* weights(std::uint64_t word) const {
    return weights_ + (static_cast<std::int64_t>(row_of(word)) - 1) * dim_;
  }

  const TableIdentity& identity_;
  Index index_;
  const float* weights_;
  std::int64_t dim_;
  bool verifies_;  ///< whether a row may be changed or removed while it is copied
};

/** Whether a table ever removes rows. */
bool evicts(const TableSpec& spec);

}  // namespace tutti::ps
