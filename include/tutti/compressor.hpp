// Compressors: what travels of a bucket of gradients.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "tutti/dtype.hpp"
#include "tutti/optimizer.hpp"
#include "tutti/sparse.hpp"
#include "tutti/transport.hpp"

namespace tutti {

/**
 * The gradients of a bucket: a stretch of the memory of all gradients, in which each gradient
 * starts on a cache line. What lies between two gradients is zero.
 */
struct BucketView {
  std::int64_t begin = 0;     ///< where the stretch starts in that memory, in elements
  std::int64_t elements = 0;  ///< of gradients, not counting what lies between them
  View gradients;             ///< the stretch, f32
  std::span<const ParameterRange> parameters;  ///< whose gradients these are, in their order
};

/** Entries of a sparse vector in memory of a GPU. */
struct GatheredEntries {
  View own;                ///< this rank's, as many bytes on all ranks
  View all;                ///< where those of all ranks arrive, in the order of the ranks
  std::int64_t count = 0;  ///< how many entries there are in `own`
};

/** What travels of a bucket. */
struct Packet {
  View elements;  ///< dense: reduced over the ranks in place
  Reduce reduce;
  /** If set, these travel, and `elements` is where their sum or average arrives. */
  std::optional<SparseView> entries{};
  /** If set, these travel, and the compressor makes the average of what has arrived. */
  std::optional<GatheredEntries> gathered{};
};

/**
 * Turns the gradients of a bucket into a packet, and what has arrived into their average. A step
 * encodes its buckets one after the other and may decode the first while later ones travel, so
 * each has its own packet. On a GPU, work is launched on the stream of the reducer. Not
 * thread-safe.
 */
class Compressor {
 public:
  virtual ~Compressor() = default;

  /** The packet of `bucket`; it lives until the bucket is decoded. */
  virtual Packet encode(const BucketView& bucket) = 0;
  /** Writes the average over the ranks to bucket.gradients. */
  virtual void decode(const BucketView& bucket) = 0;
  /** How many elements that are not finite it came across since the last call, where it looks for
   * them. Blocks until a GPU has counted them. */
  virtual std::int64_t take_non_finite() { return 0; }
};

}  // namespace tutti
