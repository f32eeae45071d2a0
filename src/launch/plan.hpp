// Which ranks are started, where, and with which environment: a value, before anything is started.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "launch/machines/check.hpp"
#include "launch/machines/machine.hpp"
#include "launch/options.hpp"
#include "launch/process/process.hpp"

namespace tutti::launch {

/** What a rank is for. Without servers all ranks are workers. */
enum class Role { worker, heter_worker, server };

/** "worker", "heter_worker" or "server". */
const char* name_of(Role role);

/** One rank. */
struct RankPlan {
  int rank = 0;  ///< in the job: workers come first, then heter_workers, then servers
  Role role = Role::worker;
  int index = 0;                      ///< among those of its role
  std::string host;                   ///< the machine it runs on
  int local_rank = 0;                 ///< among the ranks of its machine
  Endpoint endpoint;                  ///< an address of its own, for Paddle's scripts
  std::vector<int> cpus;              ///< where it may run; empty: anywhere
  std::vector<int> gpus;              ///< which of the GPUs that it sees it uses
  std::vector<Variable> environment;  ///< what it has besides ours
  std::filesystem::path log;          ///< empty: none

  /** "worker 1". */
  std::string name() const;
};

struct Plan {
  std::string host;                  ///< this machine, or the names of several
  std::vector<Host> machines;        ///< several, whose ranks mpiexec starts; empty: this one alone
  std::vector<std::string> command;  ///< as execve() takes it
  std::vector<RankPlan> ranks;       ///< by rank
  bool has_roles = false;
  std::vector<std::string> notes;  ///< what the user should know

  int count(Role role) const;
  /** The ranks on a machine. */
  std::vector<RankPlan*> ranks_of(const std::string& machine);
  /** "1 server, 4 workers". */
  std::string describe() const;
};

/** What a plan stands on besides the options. */
struct PlanSite {
  const Machine& machine;
  std::vector<Host> machines;                     ///< see placement.hpp
  std::map<std::string, CheckedMachine> checked;  ///< by name; ports of others are taken unseen
};

/**
 * Decides everything but where the logs are. Each plan has a ticket of its own; `attempt` is 0 for
 * the first start, and one more for each restart. The ports that it hands out are kept in `ports`
 * until the ranks start. Throws InvalidArgument for what this machine cannot do.
 */
Plan make_plan(const RunOptions& options, const PlanSite& site, int attempt, ReservedPorts& ports);

/** Gives each rank a log in this folder. */
void set_logs(Plan& plan, const std::filesystem::path& folder);

/** What `--dry-run` prints: each rank with the variables that it is given, and of the user's their
 * names alone. */
std::string describe(const Plan& plan);

}  // namespace tutti::launch
