// Adds up the statistics of steps.
#include "tutti/step_statistics.hpp"

namespace tutti {

StepStatistics& StepStatistics::operator+=(const StepStatistics& other) {
  bytes_sent += other.bytes_sent;
  bytes_between += other.bytes_between;
  density += other.density;
  non_finite += other.non_finite;
  pack_seconds += other.pack_seconds;
  encode_seconds += other.encode_seconds;
  exchange_seconds += other.exchange_seconds;
  decode_seconds += other.decode_seconds;
  update_seconds += other.update_seconds;
  overlap_seconds += other.overlap_seconds;
  return *this;
}

}  // namespace tutti
