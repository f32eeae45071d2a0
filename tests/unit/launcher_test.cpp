// A process that a launcher started among others does not go on alone without a word.
#include "comm/communicator/launcher.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "tutti/error.hpp"

namespace tutti {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

/** Of gtest's death tests: ends a child of this process, whose environment it may change. */
[[noreturn]] void start_alone(const Variables& variables) {
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "RANK", "PMI_SIZE", "PMI_RANK",
                           "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}) {
    ::unsetenv(name);
  }
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  try {
    refuse_unknown_launcher();
  } catch (const InvalidArgument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(1);
  }
  std::_Exit(0);
}

TEST(Launcher, ThatMpiDoesNotKnowIsNamedWithTheRemedy) {
  EXPECT_EXIT(start_alone({{"WORLD_SIZE", "3"}, {"RANK", "1"}}), ::testing::ExitedWithCode(1),
              "WORLD_SIZE is 3 and RANK is 1, as torchrun .*mpiexec -n 3 PROGRAM.*UniqueId");
  EXPECT_EXIT(start_alone({{"PMI_SIZE", "2"}, {"PMI_RANK", "0"}}), ::testing::ExitedWithCode(1),
              "PMI_SIZE is 2 and PMI_RANK is 0.*mpiexec -n 2 PROGRAM");
  EXPECT_EXIT(start_alone({{"SLURM_STEP_NUM_TASKS", "16"}, {"SLURM_PROCID", "7"}}),
              ::testing::ExitedWithCode(1), "SLURM_STEP_NUM_TASKS is 16.*srun --mpi=pmix");
}

TEST(Launcher, OfOneProcessIsNone) {
  const Variables none_of_them[] = {
      {},
      {{"WORLD_SIZE", "1"}, {"RANK", "0"}},
      {{"WORLD_SIZE", "4"}},                           // nothing says that this is one of them
      {{"SLURM_NTASKS", "4"}, {"SLURM_PROCID", "0"}},  // a batch script
      {{"OMPI_COMM_WORLD_SIZE", "1"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_PROCID", "1"}}};
  for (const Variables& variables : none_of_them) {
    EXPECT_EXIT(start_alone(variables), ::testing::ExitedWithCode(0), "");
  }
}

}  // namespace
}  // namespace tutti
