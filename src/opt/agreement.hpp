// Checks that all ranks train the same model.
#pragma once

#include <cstdint>

#include "opt/parameter_table.hpp"
#include "tutti/communicator.hpp"

namespace tutti {

/** What has to be the same on all ranks before their gradients can be averaged. */
enum class Agreement {
  layout,             ///< number, sizes and kind of memory of the parameters, size of the buckets
  layout_and_values,  ///< and each bit of the values
};

/**
 * Collective and blocking. Throws InvalidArgument on every rank, naming the ranks that differ from
 * rank 0, if there are any. Values are compared by a 64-bit hash. `home` is the stream on which
 * they are read.
 */
void check_agreement(Communicator& communicator, const ParameterTable& table,
                     std::int64_t bucket_elements, Agreement agreement, const Stream& home);

}  // namespace tutti
