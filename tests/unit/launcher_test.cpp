// What started this process, as its environment says: recognised, or refused by name.
#include "comm/communicator/launcher.hpp"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tutti/error.hpp"

namespace tutti {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

/** Of gtest's death tests: ends a child of this process, whose environment it may change, and says
 * what find() says. */
[[noreturn]] void start(const Variables& variables,
                        const std::function<Launch()>& find = &find_launch) {
  for (const char* name : {"TUTTI_RANK",
                           "TUTTI_WORLD_SIZE",
                           "TUTTI_TICKET",
                           "OMPI_COMM_WORLD_SIZE",
                           "OMPI_COMM_WORLD_RANK",
                           "OMPI_MCA_ess",
                           "PMIX_RANK",
                           "PMI_SIZE",
                           "PMI_RANK",
                           "WORLD_SIZE",
                           "RANK",
                           "LOCAL_WORLD_SIZE",
                           "MASTER_ADDR",
                           "TORCHELASTIC_RUN_ID",
                           "PADDLE_TRAINER_ENDPOINTS",
                           "PADDLE_TRAINER_ID",
                           "PADDLE_CURRENT_ENDPOINT",
                           "PADDLE_TRAINERS_NUM",
                           "TRAINING_ROLE",
                           "PADDLE_PSERVERS_IP_PORT_LIST",
                           "SLURM_STEP_NUM_TASKS",
                           "SLURM_PROCID",
                           "SLURM_NNODES",
                           "SLURM_STEP_NUM_NODES"}) {
    ::unsetenv(name);
  }
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  try {
    const Launch launch = find();
    std::fprintf(stderr, "[%s] %d of %d by %s", launch.by.c_str(), launch.rank, launch.world_size,
                 launch.ticket ? "ticket" : "MPI");
  } catch (const InvalidArgument& error) {
    std::fprintf(stderr, "%s", error.what());
    std::_Exit(1);
  }
  std::_Exit(0);
}

void expect_found(const Variables& variables, const std::string& expected) {
  EXPECT_EXIT(start(variables), ::testing::ExitedWithCode(0), expected);
}

void expect_refused(const Variables& variables, const std::string& expected) {
  EXPECT_EXIT(start(variables), ::testing::ExitedWithCode(1), expected);
}

const std::string kTicket(2 * UniqueId::kBytes, 'a');

TEST(Launcher, IsRecognisedByItsVariables) {
  expect_found({}, "^.. 0 of 0 by MPI");
  expect_found({{"TUTTI_RANK", "1"}, {"TUTTI_WORLD_SIZE", "3"}, {"TUTTI_TICKET", kTicket}},
               "tutti run. 1 of 3 by ticket");
  expect_found({{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
               "mpiexec. 2 of 4 by MPI");
  expect_found({{"PMIX_RANK", "2"}}, "mpiexec. 2 of 0 by MPI");
  expect_found({{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "mpiexec. 0 of 2 by MPI");
  expect_found({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}},
               "torchrun. 1 of 2 by ticket");
  expect_found({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "localhost"}},
               "torchrun. 1 of 2 by ticket");
  expect_found({{"PADDLE_TRAINER_ID", "1"}, {"PADDLE_TRAINER_ENDPOINTS", "a:1, a:2"}},
               "Paddle's launcher. 1 of 2 by ticket");
  expect_found({{"PADDLE_CURRENT_ENDPOINT", "a:2"}, {"PADDLE_TRAINER_ENDPOINTS", "a:1,a:2,a:3"}},
               "Paddle's launcher. 1 of 3 by ticket");
  expect_found({{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_NNODES", "1"}},
               "srun. 1 of 2 by ticket");
}

TEST(Launcher, OfOneProcessIsNone) {
  expect_found({{"WORLD_SIZE", "4"}}, "^.. 0 of 0 by MPI");  // nothing says that this is one
  expect_found({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "^.. 0 of 1 by ticket");
  expect_found({{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}},
               "^.. 0 of 0 by MPI");  // a batch script
  expect_found({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "1"}}, "^.. 0 of 1 by ticket");
}

TEST(Launcher, ThatOpenMpiPlaysForAProcessOfItsOwnIsNone) {
  // What MPI_Init leaves in the environment of a process that nothing has started.
  expect_found({{"PMIX_RANK", "0"}, {"OMPI_MCA_ess", "singleton"}}, "^.. 0 of 0 by MPI");
  expect_found({{"PMIX_RANK", "0"}, {"OMPI_MCA_ess", "^singleton"}}, "mpiexec. 0 of 0 by MPI");
}

TEST(Launcher, InnermostCounts) {
  const Variables step{{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_NNODES", "2"}};
  Variables inside = step;
  inside.insert(inside.end(), {{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"LOCAL_WORLD_SIZE", "3"}});
  expect_found(inside, "torchrun. 1 of 3");
  inside = step;
  inside.insert(inside.end(), {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "4"}});
  expect_found(inside, "mpiexec. 3 of 4");
  // What tutti run sets for programs of others does not count against it.
  expect_found({{"TUTTI_RANK", "3"},
                {"TUTTI_WORLD_SIZE", "4"},
                {"TUTTI_TICKET", kTicket},
                {"RANK", "0"},
                {"WORLD_SIZE", "2"},
                {"PADDLE_TRAINER_ENDPOINTS", "a:1,a:2"}},
               "tutti run. 3 of 4 by ticket");
  expect_found({{"TUTTI_RANK", "1"},
                {"TUTTI_WORLD_SIZE", "2"},
                {"OMPI_COMM_WORLD_RANK", "1"},
                {"OMPI_COMM_WORLD_SIZE", "2"}},
               "tutti run. 1 of 2 by MPI");
}

TEST(Launcher, ContradictionsNameTheVariables) {
  expect_refused(
      {{"TUTTI_RANK", "0"},
       {"TUTTI_WORLD_SIZE", "1"},
       {"TUTTI_TICKET", kTicket},
       {"OMPI_COMM_WORLD_RANK", "0"},
       {"OMPI_COMM_WORLD_SIZE", "4"}},
      "TUTTI_RANK is 0 and TUTTI_WORLD_SIZE is 1, as tutti run .*OMPI_COMM_WORLD_RANK is 0 "
      "and OMPI_COMM_WORLD_SIZE is 4, as mpiexec .*unset");
  expect_refused({{"RANK", "0"},
                  {"WORLD_SIZE", "2"},
                  {"LOCAL_WORLD_SIZE", "2"},
                  {"OMPI_COMM_WORLD_RANK", "1"},
                  {"OMPI_COMM_WORLD_SIZE", "2"}},
                 "OMPI_COMM_WORLD_RANK is 1 .*RANK is 0");
  expect_refused({{"TUTTI_TICKET", kTicket}}, "TUTTI_TICKET is set, but TUTTI_RANK is not");
  expect_refused({{"TUTTI_RANK", "0"}, {"TUTTI_WORLD_SIZE", "2"}}, "neither TUTTI_TICKET nor");
  expect_refused({{"TUTTI_RANK", "2"}, {"TUTTI_WORLD_SIZE", "2"}, {"TUTTI_TICKET", kTicket}},
                 "TUTTI_RANK is '2', but must be a number from 0 to 1");
  expect_refused({{"TUTTI_RANK", "0"}, {"TUTTI_WORLD_SIZE", "2"}, {"TUTTI_TICKET", "ab"}},
                 "TUTTI_TICKET: .*256");
  expect_refused({{"PADDLE_TRAINER_ID", "1"},
                  {"PADDLE_CURRENT_ENDPOINT", "a:1"},
                  {"PADDLE_TRAINER_ENDPOINTS", "a:1,a:2"}},
                 "PADDLE_TRAINER_ID is 1, but PADDLE_CURRENT_ENDPOINT, a:1, is number 0");
  expect_refused({{"PADDLE_CURRENT_ENDPOINT", "a:3"}, {"PADDLE_TRAINER_ENDPOINTS", "a:1,a:2"}},
                 "PADDLE_CURRENT_ENDPOINT is a:3, which is not in");
  expect_refused({{"PADDLE_TRAINER_ENDPOINTS", "a:1,a:2"}}, "neither PADDLE_TRAINER_ID nor");
  expect_refused({{"PADDLE_TRAINER_ID", "0"},
                  {"PADDLE_TRAINERS_NUM", "3"},
                  {"PADDLE_TRAINER_ENDPOINTS", "a:1,a:2"}},
                 "PADDLE_TRAINERS_NUM is 3, but PADDLE_TRAINER_ENDPOINTS names 2");
  expect_refused({{"TRAINING_ROLE", "PSERVER"}, {"PADDLE_TRAINER_ENDPOINTS", "a:1,a:2"}},
                 "TRAINING_ROLE .*tutti run --server_num");
}

TEST(Launcher, WhoseRanksAreOnSeveralHostsIsToldTheRemedy) {
  const std::string remedy =
      ".*tutti run --hosts, or with Open MPI's mpiexec .mpiexec -n 4 PROGRAM";
  expect_refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_WORLD_SIZE", "2"}},
                 "RANK is 1 and WORLD_SIZE is 4, as torchrun .*LOCAL_WORLD_SIZE is 2" + remedy);
  expect_refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}},
                 "neither LOCAL_WORLD_SIZE nor a MASTER_ADDR of this host" + remedy);
  expect_refused({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "elsewhere"}},
                 "neither LOCAL_WORLD_SIZE nor a MASTER_ADDR of this host" + remedy);
  expect_refused({{"SLURM_PROCID", "3"},
                  {"SLURM_STEP_NUM_TASKS", "4"},
                  {"SLURM_NNODES", "1"},
                  {"SLURM_STEP_NUM_NODES", "2"}},
                 "SLURM_STEP_NUM_NODES is 2.*srun --mpi=pmix" + remedy);
  expect_refused({{"PADDLE_TRAINER_ID", "1"}, {"PADDLE_TRAINER_ENDPOINTS", "a:1,a:2,b:1,b:2"}},
                 "on several hosts: a:1,a:2,b:1,b:2" + remedy);
}

TEST(Launcher, EndpointsAreReadOrRefused) {
  for (const char* text : {"", "a", "a:", ":1", "a:1,", "a:0", "a:65536", "a:x", ",a:1"}) {
    const auto of_text = [&] { return launch_of_endpoints(text, 0); };
    EXPECT_EXIT(start({}, of_text), ::testing::ExitedWithCode(1), "endpoints is '.*host:port");
  }
  const auto twice = [] { return launch_of_endpoints("a:1,a:2,a:1", 0); };
  EXPECT_EXIT(start({}, twice), ::testing::ExitedWithCode(1), "endpoints has a:1 twice");
  const auto fourth = [] { return launch_of_endpoints("a:1,a:2,[::1]:3", 3); };
  EXPECT_EXIT(start({}, fourth), ::testing::ExitedWithCode(1), "trainer_id is 3, .*names 3");
  const auto on_two_hosts = [] { return launch_of_endpoints("a:1,b:1", 1); };
  EXPECT_EXIT(start({}, on_two_hosts), ::testing::ExitedWithCode(1), "several hosts: a:1,b:1");
  EXPECT_EXIT(start({{"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, on_two_hosts),
              ::testing::ExitedWithCode(0), "1 of 2 by MPI");
  EXPECT_EXIT(start({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}, on_two_hosts),
              ::testing::ExitedWithCode(1), "trainer_id is 1 .*OMPI_COMM_WORLD_RANK is 0");
}

TEST(Launcher, ThatMpiDoesNotKnowIsNamedWithTheRemedy) {
  const auto alone = [] {
    Launch launch = find_launch();
    check_mpi_world(launch, 0, 1);
    return launch;
  };
  EXPECT_EXIT(start({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}, alone), ::testing::ExitedWithCode(1),
              "PMI_RANK is 0 and PMI_SIZE is 2.*rank 0 of 1.*mpiexec -n 2 PROGRAM.*tutti run -n 2");
  EXPECT_EXIT(start({{"OMPI_COMM_WORLD_SIZE", "1"}, {"OMPI_COMM_WORLD_RANK", "0"}}, alone),
              ::testing::ExitedWithCode(0), "mpiexec. 0 of 1");
}

}  // namespace
}  // namespace tutti
