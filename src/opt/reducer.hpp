// The reducer: averages gradients over the ranks, bucket by bucket, while others are being made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/arithmetic.hpp"
#include "opt/bucket.hpp"
#include "opt/exchange.hpp"
#include "opt/row_tables.hpp"
#include "tutti/communicator.hpp"
#include "tutti/compressor.hpp"
#include "tutti/gradient.hpp"
#include "tutti/optimizer.hpp"
#include "tutti/step_statistics.hpp"

namespace tutti {

/**
 * Averages the gradients of a list of parameters over the ranks of a communicator, and has an
 * optimiser update the parameters. Each step is
 *
 *     begin(compressor, bucket_elements);
 *     take(index, gradient) for each parameter;
 *     finish(optimizer);
 *
 * The gradients lie one after the other in symmetric memory, in the order of the list; buckets are
 * stretches of it. A bucket whose gradients are all there is encoded and starts its collective at
 * once, on another thread, but never before the buckets in front of it: so all ranks start them in
 * the same order, whatever the order of take(). The last bucket waits for finish(), since nothing
 * is left to overlap with; a list that fits one bucket therefore sends nothing before finish().
 *
 * Tables of which a gradient has few rows are in no bucket of a step by rows: finish() exchanges
 * them after the buckets (RowTables).
 *
 * On a GPU all work is launched, in the order of the home stream, and only the end of a step waits
 * for it; the times in the statistics are those of launching.
 *
 * Errors: those of Communicator. After one, or after any error while sending(), the reducer is
 * only good for destruction. Not thread-safe.
 */
class Reducer {
 public:
  /**
   * Collective and blocking: allocates the memory. `parameters`, whose counts are not zero, in the
   * order in which their gradients are expected; their `gradient` is not looked at. All ranks pass
   * the same counts. `home` is the stream on which gradients are made and parameters read: of a
   * GPU, in whose memory all then is, or else inline. `row_elements`, if it is not empty, is not 0
   * for parameters that are tables, which are in memory of the CPU.
   */
  Reducer(const std::shared_ptr<Communicator>& communicator, std::vector<ParameterRange> parameters,
          const Stream& home = {}, std::span<const std::int64_t> row_elements = {});
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  /** Waits for what is under way, at most until the communicator's deadline. */
  ~Reducer();

  /**
   * Where the gradient of parameter `index` travels: a gradient written here is not copied by
   * take(). Not to be touched between take() and the end of finish().
   */
  View gradient(std::size_t index) const;
  /** The parameters, in the order of the list, with their gradients. */
  std::span<const ParameterRange> parameters() const { return parameters_; }
  /** Size of the memory of all gradients, in elements. */
  std::int64_t memory_elements() const { return memory_.bytes() / size_of(DType::f32); }
  /** The memory's stretches of about `bucket_elements` (at least 1). */
  std::vector<Bucket> cut(std::int64_t bucket_elements) const;

  /**
   * Starts a step that sends buckets of about `bucket_elements` (at least 1, the same on all
   * ranks) through `compressor`, which must live until finish(). With `rows` the tables travel
   * apart, if possible as rows. A step that was not finished is forgotten. Not while sending().
   */
  void begin(Compressor& compressor, std::int64_t bucket_elements,
             const std::optional<RowWire>& rows = std::nullopt);
  /** Starts a step that sends no gradients, but parameters through `compressor`: it ends with
   * finish_locally(). */
  void begin_locally(Compressor& compressor);
  /**
   * Takes the gradient of parameter `index`: as many f32 elements in memory of its device, or rows.
   * Once for each parameter and step. Its memory is the caller's again afterwards, on the stream.
   */
  void take(std::size_t index, const Gradient& gradient);
  /**
   * Counts gradients that were not taken as zeros, sends what is not under way, and updates the
   * parameters of each bucket as its average arrives. Blocks until all are updated.
   */
  void finish(Optimizer& optimizer);
  /**
   * Updates all parameters with this rank's own gradients, those not taken counting as zeros, then
   * averages the parameters of `partition` over the ranks. Blocks.
   */
  void finish_locally(Optimizer& optimizer, const Bucket& partition);
  /** In a local step; collective and blocking: averages the parameters of `bucket` over the ranks.
   */
  void average_parameters(const Bucket& bucket);

  /** Whether other ranks wait, or would wait, for the rest of what this one has begun to send. */
  bool sending() const { return sending_; }
  /** Of the step that ended last, or of the present one so far. */
  const StepStatistics& statistics() const { return statistics_; }

 private:
  void begin_step(Compressor& compressor);
  void take_whole(std::size_t index, ConstView gradient);
  bool is_apart(std::size_t index) const { return by_rows_ && tables_.has(index); }
  void zero_missing();
  BucketView view(const Bucket& bucket) const;
  void send_next_bucket();
  void note_sent(const Traffic& traffic, std::int64_t elements);
  void copy_parameters(const BucketView& bucket, bool to_bucket);
  void receive(std::size_t packet, Exchange::Clock::time_point backward_end);

  std::vector<ParameterRange> parameters_;  // with their gradients
  std::int64_t elements_ = 0;               // of all parameters
  bool alone_ = false;                      // the only rank
  std::shared_ptr<Arithmetic> arithmetic_;  // on the stream that is home
  std::vector<std::int64_t> starts_;        // of the gradients in memory_, and their end
  Buffer memory_;                           // of the gradients
  RowTables tables_;
  std::vector<Bucket> buckets_;       // of the present layout
  std::int64_t bucket_elements_ = 0;  // that it was cut for
  bool tables_apart_ = false;         // and whether the tables are in none of them
  bool by_rows_ = false;              // the present step exchanges rows
  Compressor* compressor_ = nullptr;  // of the present step
  bool overlap_ = false;              // send buckets while gradients are still being made
  bool sending_ = false;
  std::vector<bool> taken_;
  std::size_t all_taken_ = 0;  // parameters [0, all_taken_) are taken, or tables apart
  std::int64_t sent_ = 0;      // elements of this step's packets
  std::vector<Piece> pieces_;  // of copy_parameters()
  StepStatistics statistics_;
  Exchange exchange_;  // ends first: its thread works in memory_
};

}  // namespace tutti
