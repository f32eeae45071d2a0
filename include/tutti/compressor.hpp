// Compressors: how the gradients of a bucket travel between the ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "tutti/communicator.hpp"
#include "tutti/device.hpp"
#include "tutti/dtype.hpp"
#include "tutti/optimizer.hpp"

namespace tutti {

/**
 * The gradients of a bucket: a stretch of the memory of all gradients, in which each gradient
 * starts on a cache line. What lies between two gradients is zero.
 */
struct BucketView {
  std::int64_t begin = 0;     ///< where the stretch starts in that memory, in elements
  std::int64_t elements = 0;  ///< of gradients, not counting what lies between them
  View gradients;             ///< the stretch, f32
  std::span<const ParameterRange> parameters{};  ///< whose gradients these are, in their order

  /** The stretch, in memory of the CPU. */
  std::span<float> values() const {
    return {static_cast<float*>(gradients.data), static_cast<std::size_t>(gradients.count)};
  }
};

/** How much of a bucket travels: for the statistics of the step. */
struct Traffic {
  std::int64_t elements = 0;  ///< of the gradients
  std::int64_t bytes = 0;     ///< that this rank hands to collectives
};

/** Where a compressor works. */
struct CompressorSite {
  std::shared_ptr<Communicator> communicator;  ///< of the ranks whose gradients are averaged
  std::int64_t elements = 0;  ///< size of the memory of all gradients: buckets lie in it
  Stream stream{};            ///< that of encode() and decode(); inline on a CPU
};

/**
 * Averages the gradients of buckets over the ranks: makes a packet of what is to travel, starts
 * the collectives that carry it, and turns what has arrived into the average.
 *
 * All ranks encode and exchange the same buckets in the same order, and then decode them in that
 * order. A bucket is exchanged right after it was encoded. Later ones may be encoded, and be under
 * way, before it is decoded: so each bucket has memory of its own for its packet until then. What a
 * compressor keeps from step to step, as an error of rounding, belongs to elements of the memory of
 * all gradients (BucketView::begin), since buckets may be cut anew at every step.
 *
 * On a GPU all gradients lie there; encode() and decode() launch their work on the stream of the
 * site. What is thrown ends the step as a failure of the backward pass does. Not thread-safe.
 */
class Compressor {
 public:
  Compressor() = default;
  Compressor(const Compressor&) = delete;
  Compressor& operator=(const Compressor&) = delete;
  virtual ~Compressor() = default;

  /**
   * A step begins, on all ranks, and nothing is under way: what a step that failed has left is
   * forgotten. The first time, memory of the communicator may be allocated: a rank alone repeats
   * it.
   */
  virtual void begin() {}
  /** Makes the packet of `bucket`. */
  virtual Traffic encode(const BucketView& bucket) = 0;
  /**
   * Starts the collectives of the packet on `stream`, and returns the event of the last. That may
   * be a worker's, on which they, and what is submitted between them, run while this rank goes on.
   */
  virtual Event exchange(const BucketView& bucket, const Stream& stream) = 0;
  /** The packets of all ranks have arrived: writes their average to bucket.gradients. */
  virtual void decode(const BucketView& bucket) = 0;
  /** How many elements that are not finite it came across since the last call, where it looks for
   * them. Those that a GPU counts are told a step late, since nothing waits for it. */
  virtual std::int64_t take_non_finite() { return 0; }

  /**
   * What it keeps from step to step, of this rank. Arrays are as long as the memory of all
   * gradients, and in its order. Nothing, unless overridden.
   */
  virtual OptimizerState state() const { return {}; }
  /** Goes on from a state(). Throws InvalidArgument for what it does not know: unless overridden,
   * anything. Local, before the first step. */
  virtual void load_state(const OptimizerState& state);
};

/** Makes a compressor for a model; local. */
using MakeCompressor = std::function<std::unique_ptr<Compressor>(const CompressorSite& site)>;

}  // namespace tutti
