// The life of a rank in a trial.
#pragma once

#include <optional>

#include "rig/record.hpp"
#include "rig/trial.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::test {

/**
 * Lives as rank `rank`, and shows in the record what becomes of it. With a ticket the ranks meet
 * without MPI. Returns the exit code: 0 if the rank saw no fault.
 */
int live(const Trial& trial, int rank, Record& record, const std::optional<UniqueId>& ticket);

}  // namespace tutti::test
