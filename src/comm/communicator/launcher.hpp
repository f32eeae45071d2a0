// Programs that start several processes, and what they say of them in the environment.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tutti/unique_id.hpp"

namespace tutti {

/** Which rank this process is, and how it meets the others. */
struct Launch {
  std::string by;  ///< see launched_by(); empty if nothing has started several
  int rank = 0;
  int world_size = 0;  ///< 0: MPI alone knows
  std::string said;    ///< the variables and their values, for messages
  std::optional<UniqueId>
      ticket;  ///< tickets derive from this one; without it, MPI brings them together
  std::string ticket_source;  ///< what the ticket is made of; empty: it is a secret
};

/** The launch of this process. Throws InvalidArgument for variables that contradict each other or
 * make no sense, or if its ranks are on several hosts and MPI did not start them. */
Launch find_launch();

/** That of a trainer among `endpoints`. See from_endpoints(). */
Launch launch_of_endpoints(std::string_view endpoints, int trainer_id);

/** Throws InvalidArgument unless MPI's world is what the launcher says: another MPI's launcher
 * starts processes each of which would go on alone. */
void check_mpi_world(const Launch& launch, int rank, int size);

}  // namespace tutti
