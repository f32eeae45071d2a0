// What all workers and servers of a job must have been given alike.
#pragma once

#include "ps/dense/layout.hpp"
#include "ps/link/meeting.hpp"
#include "ps/placement.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::ps {

/** Throws InvalidArgument for tables, or a mode, that make no sense. */
void check(const FleetOptions& options);

/** One line for each thing, for who reads an error. */
Terms terms_of(const FleetOptions& options, const Placement::Impl& place,
               const DenseLayout& layout);

}  // namespace tutti::ps
