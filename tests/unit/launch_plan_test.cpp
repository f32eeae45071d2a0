// Plans of jobs on machines with GPUs and sockets that the one at hand has not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "launch/placement.hpp"
#include "launch/plan.hpp"
#include "support/folder.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

/** Two sockets of four processors, numbered in turns, and some GPUs. */
Machine machine_with_gpus(int gpus) {
  Machine machine;
  machine.name = "m";
  for (int number = 0; number < 8; ++number) machine.processors.push_back({number, number % 2});
  for (int gpu = 0; gpu < gpus; ++gpu) machine.gpus.push_back(std::to_string(gpu));
  machine.has_gpus = gpus > 0;
  return machine;
}

using Variables = std::vector<std::pair<const char*, const char*>>;

Plan plan_of(std::vector<std::string> arguments, int gpus = 0, const Variables& variables = {}) {
  for (const char* const name :
       {"TUTTI_DEVICE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "PBS_NODEFILE",
        "SLURM_JOB_NODELIST", "SLURM_NTASKS", "SLURM_TASKS_PER_NODE"}) {
    ::unsetenv(name);
  }
  for (const auto& [name, text] : variables) ::setenv(name, text, 1);
  arguments.emplace_back("true");
  ReservedPorts ports;
  const Machine machine = machine_with_gpus(gpus);
  const RunOptions options = parse_run(arguments);
  return make_plan(options, {machine, machines_of(options, machine), {}}, 0, ports);
}

/** The value of a variable of a rank; "-" if it has none. */
std::string value(const Plan& plan, std::size_t rank, const std::string& name) {
  for (const Variable& variable : plan.ranks.at(rank).environment) {
    if (variable.name == name) return variable.value;
  }
  return "-";
}

TEST(LaunchPlan, GivesEachRankAGpuOrAsManyAsAllHaveAlike) {
  const Plan all = plan_of({}, 4);
  ASSERT_EQ(all.ranks.size(), 4U);
  EXPECT_EQ(value(all, 3, "TUTTI_DEVICE"), "3");
  EXPECT_EQ(value(all, 3, "CUDA_VISIBLE_DEVICES"), "-");

  const Plan pairs = plan_of({"-n", "2", "--gpus=3,1,0,2"}, 4);
  EXPECT_EQ(value(pairs, 1, "FLAGS_selected_gpus"), "2,3");
  EXPECT_EQ(value(pairs, 1, "TUTTI_DEVICE"), "2");
  EXPECT_EQ(value(pairs, 1, "CUDA_VISIBLE_DEVICES"), "3,1,0,2");

  EXPECT_THROW(plan_of({"-n", "3", "--gpus=0,1"}, 2), InvalidArgument);
  const Plan odd = plan_of({"-n", "3"}, 2);
  EXPECT_EQ(value(odd, 0, "TUTTI_DEVICE"), "-");
  EXPECT_EQ(odd.notes.front(), "3 ranks cannot share 2 GPUs alike, so that each chooses its own");
}

TEST(LaunchPlan, OfSeveralMachinesGivesGpusThatAreNamedForAll) {
  const std::vector<std::string> ips{"--ips", "198.51.100.1,198.51.100.2"};
  const Plan visible = plan_of(ips, 4, {{"CUDA_VISIBLE_DEVICES", "0,1,2,3"}});
  ASSERT_EQ(visible.ranks.size(), 8U);
  EXPECT_EQ(value(visible, 6, "FLAGS_selected_gpus"), "2");
  EXPECT_EQ(value(visible, 6, "TUTTI_DEVICE"), "2");
  EXPECT_EQ(value(visible, 6, "CUDA_VISIBLE_DEVICES"), "0,1,2,3");
  EXPECT_EQ(value(plan_of(ips, 4), 6, "TUTTI_DEVICE"), "-") << "each machine has its own";

  const Plan roles = plan_of({"--servers=198.51.100.1:1", "--workers=198.51.100.1,198.51.100.2"}, 2,
                             {{"CUDA_VISIBLE_DEVICES", "0,1"}});
  EXPECT_EQ(value(roles, 1, "TUTTI_DEVICE"), "0");
  EXPECT_EQ(value(roles, 2, "TUTTI_DEVICE"), "cpu");
}

TEST(LaunchPlan, GivesGpusToThoseWhoWork) {
  const Plan shared = plan_of({"--server_num=2", "--worker_num=3"}, 2);
  EXPECT_EQ(value(shared, 1, "TUTTI_DEVICE"), "1");
  EXPECT_EQ(value(shared, 2, "TUTTI_DEVICE"), "0");
  EXPECT_EQ(value(shared, 3, "TUTTI_DEVICE"), "cpu");
  EXPECT_EQ(value(shared, 3, "FLAGS_selected_gpus"), "-");

  const Plan heter = plan_of({"--server_num=1", "--worker_num=1", "--heter_worker_num=2"}, 2);
  EXPECT_EQ(value(heter, 0, "TUTTI_DEVICE"), "cpu");
  EXPECT_EQ(value(heter, 1, "TUTTI_DEVICE"), "0");
  EXPECT_EQ(value(heter, 2, "TUTTI_DEVICE"), "1");
}

TEST(LaunchPlan, CountsRanksAsItIsTold) {
  EXPECT_EQ(plan_of({}).ranks.size(), 1U);
  EXPECT_EQ(plan_of({"-n", "auto"}).ranks.size(), 8U);
  EXPECT_EQ(plan_of({"-n", "auto"}, 2).ranks.size(), 2U);
  EXPECT_EQ(plan_of({"-n", "gpu"}, 3).ranks.size(), 3U);
  EXPECT_THROW(plan_of({"-n", "gpu"}), InvalidArgument);
  EXPECT_EQ(plan_of({"--hosts", "localhost:2,127.0.0.1"}).ranks.size(), 3U);
}

TEST(LaunchPlan, CountsRanksOfAnAllocationOfOneMachine) {
  const auto ranks = [](const char* tasks, std::vector<std::string> arguments = {}) {
    return plan_of(std::move(arguments), 2,
                   {{"SLURM_JOB_NODELIST", "localhost"},
                    {"SLURM_NTASKS", tasks},
                    {"SLURM_TASKS_PER_NODE", tasks}})
        .ranks.size();
  };
  EXPECT_EQ(ranks("4"), 4U);
  EXPECT_EQ(ranks("4", {"-n", "3"}), 3U);
  EXPECT_EQ(ranks("1"), 2U) << "the one that starts a rank for each GPU";
  const test::Folder folder;
  const std::string nodes = folder / "nodes";
  std::ofstream(nodes) << "localhost\nlocalhost\nlocalhost\n";
  EXPECT_EQ(plan_of({}, 2, {{"PBS_NODEFILE", nodes.c_str()}}).ranks.size(), 3U);
}

TEST(LaunchPlan, GivesWhatTheUserSaysInPlaceOfItsOwn) {
  for (const std::vector<std::string>& where :
       {std::vector<std::string>{"-n", "2"}, {"--hosts", "198.51.100.1:1,198.51.100.2:1"}}) {
    std::vector<std::string> arguments{"--env", "OMP_NUM_THREADS=3", "--env", "MASTER_PORT=7"};
    arguments.insert(arguments.end(), where.begin(), where.end());
    const Plan plan = plan_of(arguments, 0, {{"TUTTI_LOG", "debug"}});
    EXPECT_EQ(value(plan, 1, "OMP_NUM_THREADS"), "3");
    EXPECT_EQ(value(plan, 1, "MASTER_PORT"), "7");
    EXPECT_EQ(plan.notes, std::vector<std::string>());
    std::vector<std::string> names;
    for (const Variable& variable : plan.ranks[1].environment) names.push_back(variable.name);
    std::sort(names.begin(), names.end());
    EXPECT_EQ(std::adjacent_find(names.begin(), names.end()), names.end()) << where.front();
  }
  ::unsetenv("TUTTI_LOG");
  EXPECT_THROW(plan_of({"--env", "TUTTI_RANK=0"}), InvalidArgument);
}

TEST(LaunchPlan, HandsVariablesToOtherMachines) {
  const Variables given{{"TUTTI_LOG", "debug"},
                        {"OMP_SCHEDULE", "static"},
                        {"NCCL_DEBUG", "INFO"},
                        {"VIRTUAL_ENV", "/mine"},
                        {"MY_OWN", "1"}};
  const Plan plan = plan_of({"--hosts", "198.51.100.1:1,198.51.100.2:1"}, 0, given);
  for (const auto& [name, text] : given) {
    EXPECT_EQ(value(plan, 1, name), std::string(name) == "MY_OWN" ? "-" : text) << name;
    ::unsetenv(name);
  }
}

TEST(LaunchPlan, RefusesToShowRanksThatThereAreNot) {
  EXPECT_THROW(plan_of({"-n", "2", "--tee", "0,2"}), InvalidArgument);
  EXPECT_EQ(plan_of({"-n", "2", "--tee", "1"}).ranks.size(), 2U);
}

TEST(LaunchPlan, BindsRanksToProcessorsAndSockets) {
  const auto cpus = [](const Plan& plan) {
    std::vector<std::vector<int>> found;
    for (const RankPlan& rank : plan.ranks) found.push_back(rank.cpus);
    return found;
  };
  using Cpus = std::vector<std::vector<int>>;
  EXPECT_EQ(cpus(plan_of({"-n", "3", "--bind", "core"})), (Cpus{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(cpus(plan_of({"-n", "3", "--bind=socket"})),
            (Cpus{{0, 2, 4, 6}, {1, 3, 5, 7}, {0, 2, 4, 6}}));
  EXPECT_EQ(cpus(plan_of({"-n", "2", "--bind", "none"})), (Cpus{{}, {}}));
  EXPECT_EQ(cpus(plan_of({"-n", "9", "--bind", "auto"})), Cpus(9));
  EXPECT_EQ(cpus(plan_of({"-n", "8", "--bind", "auto"})).back(), std::vector<int>{7});
  EXPECT_THROW(plan_of({"-n", "9", "--bind", "core"}), InvalidArgument);
}

TEST(LaunchPlan, OfSeveralMachinesHasTheirRanksInOrder) {
  const Plan plan = plan_of({"--hosts", "198.51.100.1:2,198.51.100.2:1"});
  EXPECT_EQ(plan.machines.size(), 2U);
  EXPECT_EQ(plan.host, "198.51.100.1, 198.51.100.2");
  const char* const hosts[] = {"198.51.100.1", "198.51.100.1", "198.51.100.2"};
  const char* const local_ranks[] = {"0", "1", "0"};
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(plan.ranks.at(rank).host, hosts[rank]);
    EXPECT_EQ(value(plan, rank, "TUTTI_LOCAL_RANK"), local_ranks[rank]);
    EXPECT_EQ(value(plan, rank, "TUTTI_LOCAL_SIZE"), rank < 2 ? "2" : "1");
    EXPECT_EQ(value(plan, rank, "MASTER_ADDR"), "198.51.100.1");
    EXPECT_EQ(value(plan, rank, "TUTTI_TICKET"), "-") << "they meet through MPI";
  }
  EXPECT_EQ(plan_of({"--hosts", "198.51.100.1,198.51.100.2", "-n", "4"}).ranks.size(), 8U);
  EXPECT_EQ(plan_of({"--ips", "198.51.100.1,198.51.100.2"}, 2).ranks.size(), 4U) << "a GPU each";
  EXPECT_TRUE(plan_of({"--hosts", "localhost:1"}).machines.empty());
}

TEST(LaunchPlan, PutsRolesOnTheirMachines) {
  const Plan plan = plan_of({"--servers=198.51.100.1:6170,198.51.100.2:6171",
                             "--workers=198.51.100.2,198.51.100.1:6173", "--gpus=0"});
  ASSERT_EQ(plan.ranks.size(), 4U);
  EXPECT_EQ(plan.ranks[0].host, "198.51.100.2");
  EXPECT_EQ(plan.ranks[1].endpoint.text(), "198.51.100.1:6173");
  EXPECT_EQ(plan.ranks[3].endpoint.text(), "198.51.100.2:6171");
  EXPECT_EQ(value(plan, 3, "TUTTI_LOCAL_RANK"), "1");
  EXPECT_EQ(value(plan, 1, "FLAGS_selected_gpus"), "0");
  EXPECT_EQ(value(plan, 0, "TUTTI_SECRET"), value(plan, 3, "TUTTI_SECRET"));
  EXPECT_GE(value(plan, 0, "TUTTI_SECRET").size(), 32U) << "they meet at their endpoints";
  for (const char* const wrong : {"--server_num=1", "--worker_num=2"}) {
    EXPECT_THROW(
        plan_of({wrong, wrong[2] == 's' ? "--workers=198.51.100.2" : "--servers=198.51.100.1:1"}),
        InvalidArgument);
  }
}

TEST(LaunchPlan, KnowsAddressesOfBothKinds) {
  const RunOptions options =
      parse_run({"--servers=[::1]:6170,127.0.0.1:6171", "--workers=::1,[::1],a:2", "true"});
  std::vector<std::string> found;
  for (const auto* list : {&options.servers, &options.workers}) {
    for (const Endpoint& endpoint : *list) found.push_back(endpoint.host + " " + endpoint.text());
  }
  EXPECT_EQ(found, (std::vector<std::string>{"::1 [::1]:6170", "127.0.0.1 127.0.0.1:6171",
                                             "::1 [::1]:0", "::1 [::1]:0", "a a:2"}));
}

TEST(LaunchPlan, IsDescribedWithoutSecrets) {
  const Plan plan = plan_of({"-n", "2", "--env", "NAME=hidden-value"});
  const std::string text = describe(plan);
  EXPECT_NE(text.find("NAME (not shown)"), std::string::npos);
  EXPECT_NE(text.find("TUTTI_RANK=1"), std::string::npos);
  EXPECT_EQ(text.find("hidden-value"), std::string::npos);
  EXPECT_EQ(text.find(value(plan, 0, "TUTTI_TICKET")), std::string::npos);
}

}  // namespace
}  // namespace tutti::launch
