// Checks that all ranks train the same model.
#pragma once

#include <cstdint>

#include "opt/parameter_table.hpp"
#include "tutti/communicator.hpp"

namespace tutti {

/** What has to be the same on all ranks before their gradients can be averaged. */
enum class Agreement {
  layout,             ///< number, sizes, layouts and kind of memory of the parameters, bucket size
  layout_and_values,  ///< and each bit of the values
};

/**
 * Collective and blocking. Throws InvalidArgument on every rank, naming the ranks that differ from
 * rank 0, if there are any; MismatchError, which shows the first that differs, where only
 * Parameter::layout does. Layouts and values are compared by 64-bit hashes. `home` is the stream on
 * which values are read.
 */
void check_agreement(Communicator& communicator, const ParameterTable& table,
                     std::int64_t bucket_elements, Agreement agreement, const Stream& home);

}  // namespace tutti
