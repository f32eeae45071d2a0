// What a worker has for one server and has not sent.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ps/modes/placed_gradient.hpp"
#include "ps/modes/servers.hpp"
#include "ps/table/merge.hpp"

namespace tutti::ps {

/** Gradients of a batch, or of several that are merged. Keeps its memory. Those of dense blocks lie
 * where the link wants what it sends: they are copied once, or the worker has written them there.
 * Not thread-safe. */
class Batch {
 public:
  Batch(const Servers& servers, int server);

  void add_rows(int table, const RowPush& push, const IdShare& share);
  /** Takes the memory that add_dense() of a block needs. */
  void reserve_for(std::size_t block);
  /** The gradient of a block: `piece.count` elements. */
  void add_dense(const Servers::Piece& piece, const float* gradient);
  /** The same, where it lies, of a block that there is none of. */
  void add_placed(std::size_t block, PlacedGradient::Held gradient);
  /** Whether there is a gradient of a block. */
  bool has(std::size_t block) const { return blocks_[block].batches > 0; }
  /** Merges a later one, which is to be cleared then. */
  void add(Batch& later);
  void clear();

  bool empty() const { return batches_ == 0; }
  /** Merged gradients of a table's rows. */
  RowPush rows(int table) const { return contents(tables_[static_cast<std::size_t>(table)]); }
  /** How many that were not empty were merged. */
  std::int64_t batches() const { return batches_; }

  /** Sums or means of the dense blocks for which there are any. To be cleared then. */
  std::vector<BlockGradient> finish_dense();
  /** Requests as which it is sent, at most. */
  std::int64_t requests() const { return std::ssize(tables_) + 1 + std::ssize(placed_); }
  /** Sends sums where the rule is Sgd, otherwise means of the batches that had any. To be cleared
   * then. If this throws, it is either as it was, or nothing of it is left to be sent. */
  void send(Servers& servers, std::int64_t round);

 private:
  struct Rows {
    Merger merged;
    std::int64_t dim;
    std::int64_t batches = 0;  ///< that had any for this table
  };
  struct BlockSum {
    float* elements = nullptr;
    std::int64_t batches = 0;                    ///< that had any for this block
    std::optional<PlacedGradient::Held> placed;  ///< none: they are in dense_
  };
  static RowPush contents(const Rows& rows);
  /** Adds to a block's sum, or begins it. */
  void add_to_block(std::size_t number, const float* gradient);
  /** Takes a later one's memory for copies, which this has none of, and what is there. */
  void adopt_copies(Batch& later);
  std::int64_t elements_of(std::size_t block) const;
  void drop_gradients();

  const Servers* servers_;
  int server_;
  std::vector<Rows> tables_;
  std::optional<Draft> dense_;        // from the first copied gradient on until it is sent
  std::vector<BlockSum> blocks_;      // of the server's
  std::vector<std::int32_t> copied_;  // of those in dense_, in the order in which they lie there
  std::int64_t copied_elements_ = 0;
  std::vector<std::int32_t> placed_;  // of all others that there are
  std::int64_t batches_ = 0;
};

}  // namespace tutti::ps
