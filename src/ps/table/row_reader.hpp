// Reads rows of a table that another thread or process may be changing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ps/table/index.hpp"
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

 private:
  /** An id on its way: where it is searched, and what was found there. */
  struct Search {
    int shard;
    Lines lines;
    Line* home;
    Index::Found found;
  };

  /** The three steps of a look-up. Each asks for the memory that the next one needs. */
  Search begin(std::int64_t id) const;
  void find(Search& search, std::int64_t id) const;
  /** False unless the row was found, and is whole. */
  bool finish(const Search& search, float* row) const;

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
