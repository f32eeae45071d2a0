// Averages the gradients of tables of which a step touches few rows, by exchanging those alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/arithmetic.hpp"
#include "opt/row_sum.hpp"
#include "tutti/communicator.hpp"
#include "tutti/compressor.hpp"
#include "tutti/gradient.hpp"
#include "tutti/optimizer.hpp"
#include "tutti/step_statistics.hpp"

namespace tutti {

/** As what rows travel. */
struct RowWire {
  DType dtype = DType::f32;  ///< or f16, bf16: divided by the ranks before they are rounded
  float limit = 0.0F;        ///< in 16 bits: clips to [-limit, limit] first; 0 does not
};

/**
 * The tables among the parameters of a Reducer. In a step by rows each rank adds up what it has of
 * a row several times; then all ranks get the rows of all, and add them in rank order: on one host
 * that gives the bits of a whole gradient. Where the rows of all ranks are at least as many as the
 * table has, or where a rank has a whole gradient, it travels whole, through the step's compressor.
 *
 * The whole gradient of a table lies in the memory of gradients, where an optimiser needs it; its
 * rows are zeroed again after each step by rows, and all of it only after it had other contents.
 */
class RowTables {
 public:
  /** None. */
  RowTables() = default;
  /** `parameters` with their gradients; tables are those of which row_elements, if it is not empty,
   * is not 0. They lie in memory of the CPU. */
  RowTables(std::shared_ptr<Communicator> communicator, std::span<const ParameterRange> parameters,
            std::span<const std::int64_t> row_elements);

  /** Which parameters are tables; empty if none is. */
  const std::vector<bool>& which() const { return which_; }
  bool has(std::size_t parameter) const { return !which_.empty() && which_[parameter]; }

  /** A step begins whose rows travel as `wire`: no table has a gradient. */
  void begin(const RowWire& wire);
  /** Another step begins, which leaves anything in the memory of gradients. */
  void begin_whole();
  /** A gradient of rows. */
  void take(std::size_t parameter, const Gradient& rows);
  /** A whole gradient, which has been written to the memory of gradients. */
  void take_whole(std::size_t parameter);
  /** Collective and blocking: averages, what is whole through `compressor`, and has `optimizer`
   * update what has a gradient. How many elements of gradients this rank has sent. */
  std::int64_t finish(Compressor& compressor, Optimizer& optimizer, StepStatistics& statistics);

 private:
  struct Table {
    std::size_t parameter = 0;
    ParameterRange range;
    std::int64_t begin = 0;  // in the memory of gradients
    std::int64_t width = 0;  // of a row
    std::int64_t rows = 0;   // of all
    RowSum own;              // of this rank, in this step
    bool is_whole = false;   // this rank has a whole gradient
    bool is_clean = true;    // the memory of the gradient is zeros

    View gradient() const { return {const_cast<float*>(range.gradient), range.count, DType::f32}; }
  };

  Table& table(std::size_t parameter);
  void agree_on_counts();
  void average_whole(Table& table, Compressor& compressor, Optimizer& optimizer,
                     StepStatistics& statistics);
  void average_rows(Table& table, std::span<const std::int64_t> counts, Optimizer& optimizer,
                    StepStatistics& statistics);
  void gather(const Table& table, std::span<const std::int64_t> counts);
  void gather_values(std::span<const float> own);
  void average_gathered(std::int64_t width, StepStatistics& statistics);
  void update(Table& table, Optimizer& optimizer);
  void write_own(Table& table) const;

  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<Arithmetic> arithmetic_;
  RowWire wire_;
  std::vector<bool> which_;
  std::vector<Table> tables_;
  std::vector<std::int64_t> own_counts_;  // rows of this rank, by table
  std::vector<std::int64_t> counts_;      // by rank and table
  // Of one exchange.
  std::vector<std::int64_t> row_counts_;  // by rank
  std::vector<std::int64_t> value_counts_;
  std::vector<std::int64_t> all_indices_;
  std::vector<float> all_values_;
  std::vector<std::uint16_t> own_packet_;  // in 16 bits
  std::vector<std::uint16_t> all_packets_;
  RowSum sum_;
  std::vector<ParameterRange> ranges_;
};

}  // namespace tutti
