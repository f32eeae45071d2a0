// How processes that a launcher has started find out which rank they are, and join the others.
#pragma once

#include <string>
#include <string_view>

#include "tutti/communicator.hpp"

namespace tutti {

/**
 * What has started this process as one of several ranks, as its environment says; empty if nothing
 * has. Throws InvalidArgument if the variables contradict each other, naming them.
 *
 * Communicator() joins by the first of these whose variables are set:
 *
 * | launched_by()  | variables | the ranks meet |
 * |---|---|---|
 * | tutti run      | TUTTI_RANK, TUTTI_WORLD_SIZE, TUTTI_TICKET | by the ticket; without one, MPI |
 * | mpiexec        | those of Open MPI, PMIx or PMI | through MPI |
 * | torchrun       | RANK, WORLD_SIZE, and LOCAL_WORLD_SIZE or MASTER_ADDR | on one host |
 * | Paddle's launcher | PADDLE_TRAINER_ENDPOINTS, PADDLE_TRAINER_ID | on one host |
 * | srun           | SLURM_PROCID, SLURM_STEP_NUM_TASKS; not PMIx's | on one host |
 *
 * On one host means: by a ticket that is derived from variables that are alike on all ranks, which
 * is no secret, but other users cannot join with it (docs/launching.md). Ranks on several hosts
 * meet through MPI alone, and are told so. Where tutti run gives ranks roles, Communicator() joins
 * all of them, servers as well; split() makes one for each.
 */
std::string launched_by();

/**
 * Joins the trainers that `endpoints` names: "host:port" of trainer 0, of trainer 1, and so on,
 * with commas between, alike on all of them. This one is rank `trainer_id`. Collective over the
 * trainers, and blocking: the n-th call of each is one communicator. Nothing listens at the
 * ports: on one host the list is what the trainers know each other by, and they need no launcher.
 * Trainers of several hosts meet through MPI, whose ranks they must be.
 * Errors: InvalidArgument for endpoints that are not host:port, that come twice, or that are on
 * several hosts where MPI has not started this process or says otherwise; and those of
 * Communicator's constructors.
 */
Communicator from_endpoints(std::string_view endpoints, int trainer_id,
                            const CommOptions& options = {});

}  // namespace tutti
