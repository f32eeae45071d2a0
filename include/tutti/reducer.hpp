// The reducer: averages gradients over the ranks, bucket by bucket, while others are being made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tutti/communicator.hpp"
#include "tutti/optimizer.hpp"

namespace tutti {

struct Bucket;
class Exchange;

/**
 * Averages the gradients of a list of parameters over the ranks of a communicator, and has an
 * optimiser update the parameters. Each step is
 *
 *     begin();  take(index, gradient) for each parameter;  finish(optimizer);
 *
 * The gradients lie one after the other in symmetric memory, in the order of the list; buckets are
 * stretches of it. A bucket whose gradients are all there starts its collective at once, on
 * another thread, but never before the buckets in front of it: so all ranks start them in the same
 * order, whatever the order of take(). The last bucket waits for finish(), since nothing is left
 * to overlap with; a list that fits one bucket therefore sends nothing before finish().
 *
 * Errors: those of Communicator. After one, or after any error while sending(), the reducer is
 * only good for destruction. Not thread-safe.
 */
class Reducer {
 public:
  /**
   * Collective and blocking: allocates the memory. `parameters`, whose counts are not zero, in the
   * order in which their gradients are expected; their `gradient` is not looked at. All ranks pass
   * the same counts and `bucket_elements` (at least 1).
   */
  Reducer(std::shared_ptr<Communicator> communicator, std::vector<ParameterRange> parameters,
          std::int64_t bucket_elements);
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;
  /** Waits for what is under way, at most until the communicator's deadline. */
  ~Reducer();

  /**
   * Where the gradient of parameter `index` travels: a gradient written here is not copied by
   * take(). Not to be touched between take() and the end of finish().
   */
  View gradient(std::size_t index) const;

  /** Starts a step; one that was not finished is forgotten. Not while sending(). */
  void begin();
  /**
   * Takes the gradient of parameter `index`: as many f32 elements in CPU memory. Once for each
   * parameter and step. Its memory is the caller's again afterwards.
   */
  void take(std::size_t index, ConstView gradient);
  /**
   * Counts gradients that were not taken as zeros, sends what is not under way, and updates the
   * parameters of each bucket as its average arrives. Blocks until all are updated.
   */
  void finish(Optimizer& optimizer);

  /** Whether any bucket of a step that has not finished was sent. */
  bool sending() const { return !arrivals_.empty(); }
  /** Bytes that this rank handed to collectives in the last step. */
  std::int64_t bytes_sent() const { return bytes_sent_; }

 private:
  void send_next_bucket();

  std::vector<ParameterRange> parameters_;  // with their gradients
  std::vector<Bucket> buckets_;
  Buffer memory_;         // of the gradients
  bool overlap_ = false;  // send buckets while gradients are still being made
  std::vector<bool> taken_;
  std::size_t all_taken_ = 0;    // parameters [0, all_taken_) are taken
  std::vector<Event> arrivals_;  // of the buckets sent in this step, the first ones
  std::int64_t bytes_sent_ = 0;
  std::unique_ptr<Exchange> exchange_;  // ends first: its thread works in memory_
};

}  // namespace tutti
