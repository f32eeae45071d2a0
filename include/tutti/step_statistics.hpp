// What a step of DistOpt did.
#pragma once

#include <cstdint>

namespace tutti {

/** What one step did on this rank. All times are in seconds. */
struct StepStatistics {
  /** The packets that were handed to collectives; the same for any layout of hosts. */
  std::int64_t bytes_sent = 0;
  /** What this rank sent to other hosts (Communicator::bytes_between()) from the first of these
   * collectives to the end of the last. Of a host's ranks the lowest sends for all, or each a share
   * of long sums. */
  std::int64_t bytes_between = 0;
  /** Elements of packets per gradient element: 1 where all are sent. */
  double density = 0.0;
  /** Elements that are not finite, where the mode looks for them (docs/numerics.md). On a GPU, of
   * the mode's step before. */
  std::int64_t non_finite = 0;
  double pack_seconds = 0.0;      ///< copying gradients into buckets
  double encode_seconds = 0.0;    ///< making packets
  double exchange_seconds = 0.0;  ///< in collectives, on whatever thread
  double decode_seconds = 0.0;    ///< turning what arrived into averages
  double update_seconds = 0.0;    ///< in the optimiser
  double overlap_seconds = 0.0;   ///< the part of exchange_seconds during the backward pass

  /** Field by field, for totals over several steps. */
  StepStatistics& operator+=(const StepStatistics& other);
};

}  // namespace tutti
