// What a worker has for one server and has not sent.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ps/modes/servers.hpp"
#include "ps/table/merge.hpp"

namespace tutti::ps {

/** Gradients of a batch, or of several that are merged. Keeps its memory. Not thread-safe. */
class Batch {
 public:
  Batch(const Servers& servers, int server);

  void add_rows(int table, const RowPush& push, const IdShare& share);
  /** `offset` is one in the server's blocks. */
  void add_dense(std::int64_t offset, std::span<const float> gradient);
  /** Merges a later one. */
  void add(const Batch& later);
  void clear();

  bool empty() const { return batches_ == 0; }
  /** Merged gradients of a table's rows, */
  RowPush rows(int table) const { return contents(tables_[static_cast<std::size_t>(table)]); }
  /** and of the server's blocks; empty: none. */
  std::span<const float> dense() const { return dense_; }
  /** How many that were not empty were merged. */
  std::int64_t batches() const { return batches_; }

  /** Sends sums where the rule is Sgd, otherwise means of the batches that had any. To be cleared
   * then. */
  void send(Servers& servers, std::int64_t round);

 private:
  struct Rows {
    Merger merged;
    std::int64_t dim;
    std::int64_t batches = 0;  ///< that had any for this table
  };
  static RowPush contents(const Rows& rows);
  void average_dense(const Servers& servers);

  int server_;
  std::vector<Rows> tables_;
  std::vector<float> dense_;  ///< empty, or one for each element of the server's blocks
  std::int64_t elements_;
  std::int64_t dense_batches_ = 0;
  std::int64_t batches_ = 0;
};

}  // namespace tutti::ps
