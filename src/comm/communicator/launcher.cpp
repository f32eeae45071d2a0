// Recognises launchers by the variables that they set.
#include "comm/communicator/launcher.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "comm/communicator/endpoints.hpp"
#include "comm/derived_ticket.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr const char* kPaddle = "Paddle's launcher";

/** What the variables of one launcher say. */
struct Claim {
  std::string by;
  std::string said;
  int rank = 0;
  int size = 0;  ///< 0: they do not say
};

int number_in(const std::string& name, const std::string& text, int low, int high) {
  const auto number = parse_number<int>(text);
  if (!number || *number < low || *number > high) {
    refuse(name, " is '", text, "', but must be a number from ", low, " to ", high);
  }
  return *number;
}

/** Nothing unless both variables are set. */
std::optional<Claim> claim_of(const char* by, const std::string& rank_name,
                              const std::string& size_name) {
  const auto rank = environment(rank_name.c_str());
  const auto size = environment(size_name.c_str());
  if (!rank || !size) return std::nullopt;
  Claim claim{.by = by, .said = rank_name + " is " + *rank + " and " + size_name + " is " + *size};
  claim.size = number_in(size_name, *size, 1, std::numeric_limits<int>::max());
  claim.rank = number_in(rank_name, *rank, 0, claim.size - 1);
  return claim;
}

/** Of Open MPI, of other MPIs (PMI), or of whatever starts processes through PMIx. */
std::optional<Claim> mpi_claim() {
  constexpr const char* kName = "mpiexec";
  if (auto claim = claim_of(kName, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")) return claim;
  // Started by nobody, and MPI is initialised: Open MPI has said so to MPI and to its children.
  const bool alone = environment("OMPI_MCA_ess") == "singleton";
  if (const auto rank = environment("PMIX_RANK"); rank && !alone) {
    const int number = number_in("PMIX_RANK", *rank, 0, std::numeric_limits<int>::max());
    return Claim{.by = kName, .said = "PMIX_RANK is " + *rank, .rank = number};
  }
  return claim_of(kName, "PMI_RANK", "PMI_SIZE");
}

/** Those of a step: SLURM_NTASKS is set in a batch script as well, which is one process. */
std::optional<Claim> slurm_claim() {
  return claim_of("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
}

std::optional<Claim> torchrun_claim() { return claim_of("torchrun", "RANK", "WORLD_SIZE"); }

std::optional<Claim> tutti_run_claim() {
  constexpr std::array kNames{"TUTTI_RANK", "TUTTI_WORLD_SIZE", "TUTTI_TICKET"};
  const auto is_set = [](const char* name) { return environment(name).has_value(); };
  const auto* const one = std::find_if(kNames.begin(), kNames.end(), is_set);
  if (one == kNames.end()) return std::nullopt;
  for (const char* name : {kNames[0], kNames[1]}) {
    if (!is_set(name)) refuse(*one, " is set, but ", name, " is not: tutti run sets both");
  }
  return claim_of("tutti run", kNames[0], kNames[1]);
}

int index_of(const Endpoints& endpoints, const std::string& endpoint) {
  const auto at = std::find(endpoints.all.begin(), endpoints.all.end(), endpoint);
  if (at == endpoints.all.end()) {
    refuse("PADDLE_CURRENT_ENDPOINT is ", endpoint, ", which is not in PADDLE_TRAINER_ENDPOINTS, ",
           endpoints.text());
  }
  return static_cast<int>(at - endpoints.all.begin());
}

Claim paddle_claim(const Endpoints& endpoints) {
  const auto role = environment("TRAINING_ROLE");
  if ((role && *role != "TRAINER") || environment("PADDLE_PSERVERS_IP_PORT_LIST")) {
    refuse(
        "TRAINING_ROLE or PADDLE_PSERVERS_IP_PORT_LIST says that there are parameter servers, "
        "which PADDLE_TRAINER_ENDPOINTS does not name: start all with tutti run --server_num N "
        "--worker_num N");
  }
  if (const auto trainers = environment("PADDLE_TRAINERS_NUM");
      trainers && *trainers != std::to_string(endpoints.count())) {
    refuse("PADDLE_TRAINERS_NUM is ", *trainers, ", but PADDLE_TRAINER_ENDPOINTS names ",
           endpoints.count());
  }
  const auto id = environment("PADDLE_TRAINER_ID");
  const auto own = environment("PADDLE_CURRENT_ENDPOINT");
  if (!id && !own) {
    refuse(
        "PADDLE_TRAINER_ENDPOINTS is set, but neither PADDLE_TRAINER_ID nor "
        "PADDLE_CURRENT_ENDPOINT says which trainer this is");
  }
  const int rank = id ? number_in("PADDLE_TRAINER_ID", *id, 0, endpoints.count() - 1)
                      : index_of(endpoints, *own);
  if (own && index_of(endpoints, *own) != rank) {
    refuse("PADDLE_TRAINER_ID is ", rank, ", but PADDLE_CURRENT_ENDPOINT, ", *own, ", is number ",
           index_of(endpoints, *own), " of PADDLE_TRAINER_ENDPOINTS");
  }
  return {.by = kPaddle,
          .said = "PADDLE_TRAINER_ID is " + std::to_string(rank) +
                  " and PADDLE_TRAINER_ENDPOINTS names " + std::to_string(endpoints.count()),
          .rank = rank,
          .size = endpoints.count()};
}

void require_same(const Claim& one, const Claim& other) {
  const bool sizes_differ = one.size != 0 && other.size != 0 && one.size != other.size;
  if (one.rank == other.rank && !sizes_differ) return;
  refuse(one.said, ", as ", one.by, " sets them, but ", other.said, ", as ", other.by,
         " does: unset those of the one that has not started this process");
}

Launch launch_of(const Claim& claim) {
  return {claim.by, claim.rank, claim.size, claim.said, {}, {}};
}

using Variables = std::vector<std::pair<std::string, std::string>>;

/**
 * The launch of ranks that meet on this host by a ticket of these variables, which are alike on all
 * of them. How many they are is not among them, so that ranks that disagree on it meet, and say so.
 */
Launch launch_on_this_host(const Claim& claim, const Variables& variables) {
  Launch launch = launch_of(claim);
  if (claim.size == 1) {  // nobody is to be met, and other jobs may be alike
    launch.by.clear();
    launch.ticket = UniqueId::create();
    return launch;
  }
  // Containers may share memory, and be the only ones on their own network.
  std::string text = "tutti " + claim.by + " of user " + std::to_string(::geteuid()) +
                     " on network " + identity_of("/proc/self/ns/net");
  for (const auto& [name, value] : variables) {
    text.append("\n").append(name).append("=").append(value);
    launch.ticket_source.append(launch.ticket_source.empty() ? "" : ", ").append(name);
  }
  launch.ticket = ticket_of_text(text);
  return launch;
}

Variables variables_of(std::initializer_list<const char*> names) {
  Variables variables;
  for (const char* name : names) {
    variables.emplace_back(name, environment(name).value_or(std::string()));
  }
  return variables;
}

[[noreturn]] void refuse_several_hosts(const Claim& claim, const std::string& why) {
  const std::string size = std::to_string(claim.size);
  refuse(claim.said, ", as ", claim.by, " sets them, but ", why,
         ". Ranks on several hosts meet through MPI: start them with tutti run --hosts, or with "
         "Open MPI's mpiexec (mpiexec -n ",
         size, " PROGRAM); those of one host can be given a UniqueId (NcclIdHolder) instead");
}

Launch torchrun_launch(const Claim& claim) {
  const auto local = environment("LOCAL_WORLD_SIZE");
  const auto master = environment("MASTER_ADDR");
  constexpr std::array kThisHost{"localhost", "127.0.0.1", "::1"};
  const auto is_master = [&](const std::string& name) { return master == name; };
  if (local && *local != std::to_string(claim.size)) {
    refuse_several_hosts(claim, "LOCAL_WORLD_SIZE is " + *local);
  }
  if (!local && claim.size > 1 && std::none_of(kThisHost.begin(), kThisHost.end(), is_master) &&
      !is_master(host_name())) {
    refuse_several_hosts(
        claim, "neither LOCAL_WORLD_SIZE nor a MASTER_ADDR of this host says that all are here");
  }
  return launch_on_this_host(claim,
                             variables_of({"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
                                           "TORCHELASTIC_RESTART_COUNT"}));
}

Launch endpoints_launch(const Claim& claim, const Endpoints& endpoints) {
  if (!endpoints.one_host) {
    refuse_several_hosts(claim, "they are on several hosts: " + endpoints.text());
  }
  return launch_on_this_host(claim, {{"the trainers' endpoints", endpoints.text()}});
}

Launch slurm_launch(const Claim& claim) {
  const char* const nodes =
      environment("SLURM_STEP_NUM_NODES") ? "SLURM_STEP_NUM_NODES" : "SLURM_NNODES";
  const std::string count = environment(nodes).value_or("1");
  if (count != "1") {
    refuse_several_hosts(claim, std::string(nodes) + " is " + count +
                                    " (and the step is without PMIx; with it, srun --mpi=pmix, "
                                    "they would)");
  }
  return launch_on_this_host(claim, variables_of({"SLURM_JOB_ID", "SLURM_STEP_ID"}));
}

Launch tutti_run_launch(const Claim& claim, const std::optional<Claim>& mpi) {
  if (mpi) require_same(claim, *mpi);
  const auto torchrun = torchrun_claim();  // tutti run sets these, too
  if (torchrun && environment("TORCHELASTIC_RUN_ID")) require_same(claim, *torchrun);
  Launch launch = launch_of(claim);
  if (const auto ticket = environment("TUTTI_TICKET")) {
    try {
      launch.ticket = UniqueId::parse(*ticket);
    } catch (const InvalidArgument& error) {
      refuse("TUTTI_TICKET: ", error.what());
    }
  } else if (!mpi) {
    refuse(claim.said,
           ", as tutti run sets them, but neither TUTTI_TICKET nor a variable of MPI "
           "is set");
  }
  return launch;
}

}  // namespace

Launch find_launch() {
  const auto mpi = mpi_claim();
  if (const auto claim = tutti_run_claim()) return tutti_run_launch(*claim, mpi);

  const auto torchrun = torchrun_claim();
  std::optional<Endpoints> endpoints;
  std::optional<Claim> paddle;
  if (const auto list = environment("PADDLE_TRAINER_ENDPOINTS")) {
    endpoints = parse_endpoints("PADDLE_TRAINER_ENDPOINTS", *list);
    paddle = paddle_claim(*endpoints);
  }
  if (mpi && torchrun) require_same(*mpi, *torchrun);
  if (mpi && paddle) require_same(*mpi, *paddle);
  if (torchrun && paddle) require_same(*torchrun, *paddle);
  if (mpi) return launch_of(*mpi);
  if (torchrun) return torchrun_launch(*torchrun);
  if (paddle) return endpoints_launch(*paddle, *endpoints);
  // Inside a job of Slurm the other launchers are started by srun, so theirs come first.
  if (const auto slurm = slurm_claim()) return slurm_launch(*slurm);
  return {};
}

Launch launch_of_endpoints(std::string_view endpoints, int trainer_id) {
  const Endpoints trainers = parse_endpoints("endpoints", endpoints);
  if (trainer_id < 0 || trainer_id >= trainers.count()) {
    refuse("trainer_id is ", trainer_id, ", but endpoints names ", trainers.count(), " trainers");
  }
  const Claim claim{.by = kPaddle,
                    .said = "trainer_id is " + std::to_string(trainer_id) +
                            " and endpoints names " + std::to_string(trainers.count()),
                    .rank = trainer_id,
                    .size = trainers.count()};
  const auto mpi = mpi_claim();
  if (!mpi) return endpoints_launch(claim, trainers);
  require_same(claim, *mpi);
  return launch_of(*mpi);
}

void check_mpi_world(const Launch& launch, int rank, int size) {
  if (launch.world_size == 0 || (launch.world_size == size && launch.rank == rank)) return;
  refuse(launch.said, ", as ", launch.by, " sets them, but for MPI this is rank ", rank, " of ",
         size, ". Start the processes with Open MPI's mpiexec (mpiexec -n ", launch.world_size,
         " PROGRAM), with srun --mpi=pmix, or on one host with tutti run -n ", launch.world_size,
         "; or give them local_rank, world_size and a UniqueId (NcclIdHolder)");
}

}  // namespace tutti
