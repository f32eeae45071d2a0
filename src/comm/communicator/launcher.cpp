// Recognises launchers by the variables that they set.
#include "comm/communicator/launcher.hpp"

#include <array>
#include <string>

#include "base/environment.hpp"
#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

struct Launcher {
  const char* name;
  const char* size;  ///< the variable that says how many processes it has started
  const char* rank;  ///< which of them this is
};

// Of Slurm those of the step: SLURM_NTASKS is set in a batch script as well, which is one process.
constexpr std::array kLaunchers{Launcher{"torchrun", "WORLD_SIZE", "RANK"},
                                Launcher{"another MPI's mpiexec", "PMI_SIZE", "PMI_RANK"},
                                Launcher{"srun", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}};

}  // namespace

void refuse_unknown_launcher() {
  if (environment("OMPI_COMM_WORLD_SIZE")) return;  // Open MPI's own, which may start just one
  for (const Launcher& launcher : kLaunchers) {
    const auto size = environment(launcher.size);
    const auto rank = environment(launcher.rank);
    if (!size || !rank || parse_number<int>(*size).value_or(0) < 2) continue;
    throw InvalidArgument(
        std::string(launcher.size) + " is " + *size + " and " + launcher.rank + " is " + *rank +
        ", as " + launcher.name +
        " sets them, but MPI knows of one process: each would be rank 0 of 1. "
        "Start them with Open MPI's mpiexec (mpiexec -n " +
        *size +
        " PROGRAM) or with srun --mpi=pmix, or give them local_rank, world_size and a UniqueId "
        "(NcclIdHolder). For one process alone, unset " +
        launcher.size);
  }
}

}  // namespace tutti
