// Writes what a plan holds as variables.
#include "launch/contract.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "base/environment.hpp"
#include "launch/process/lists.hpp"

namespace tutti::launch {
namespace {

/** How many of the ranks are on a host and in these roles, up to one of them. */
template <class Counts>
int count_local(const Plan& plan, const std::string& host, const Counts& counts) {
  return static_cast<int>(
      std::count_if(plan.ranks.begin(), plan.ranks.end(),
                    [&](const RankPlan& rank) { return rank.host == host && counts(rank); }));
}

std::string endpoints_of(const Plan& plan, Role role) {
  std::vector<std::string> list;
  for (const RankPlan& rank : plan.ranks) {
    if (rank.role == role) list.push_back(rank.endpoint.text());
  }
  return join_list(list);
}

const char* paddle_role(Role role) {
  switch (role) {
    case Role::server:
      return "PSERVER";
    case Role::heter_worker:
      return "HETER_TRAINER";
    case Role::worker:
      break;
  }
  return "TRAINER";
}

template <class Adder>
void add_tutti(const Plan& plan, const RankPlan& rank, const Job& job, const Adder& add) {
  add("TUTTI_RANK", std::to_string(rank.rank));
  add("TUTTI_WORLD_SIZE", std::to_string(plan.ranks.size()));
  add("TUTTI_LOCAL_RANK", std::to_string(rank.local_rank));
  add("TUTTI_LOCAL_SIZE",
      std::to_string(count_local(plan, rank.host, [](const RankPlan&) { return true; })));
  add("TUTTI_ROLE", name_of(rank.role));
  add("TUTTI_ROLE_INDEX", std::to_string(rank.index));
  add("TUTTI_ATTEMPT", std::to_string(job.attempt));
}

/** As torchrun sets them; the workers are a group of their own. */
template <class Adder>
void add_torch(const Plan& plan, const RankPlan& rank, const Job& job, const Adder& add) {
  if (rank.role != Role::worker) return;
  const auto worker = [](const RankPlan& other) { return other.role == Role::worker; };
  add("RANK", std::to_string(rank.index));
  add("WORLD_SIZE", std::to_string(plan.count(Role::worker)));
  add("LOCAL_RANK", std::to_string(count_local(plan, rank.host, [&](const RankPlan& other) {
        return worker(other) && other.index < rank.index;
      })));
  add("LOCAL_WORLD_SIZE", std::to_string(count_local(plan, rank.host, worker)));
  add("MASTER_ADDR", job.master.host);
  add("MASTER_PORT", std::to_string(job.master.port));
}

/** As fleetrun sets them. */
template <class Adder>
void add_paddle(const Plan& plan, const RankPlan& rank, const Job& job, const Adder& add) {
  add("TRAINING_ROLE", paddle_role(rank.role));
  add("PADDLE_TRAINERS_NUM", std::to_string(plan.count(Role::worker)));
  add("PADDLE_TRAINER_ENDPOINTS", endpoints_of(plan, Role::worker));
  if (rank.role != Role::server) add("PADDLE_TRAINER_ID", std::to_string(rank.index));
  add("PADDLE_CURRENT_ENDPOINT", rank.endpoint.text());
  add("POD_IP", rank.endpoint.host);
  add("PADDLE_PORT", std::to_string(rank.endpoint.port));
  if (plan.has_roles) {
    add("PADDLE_PSERVERS_IP_PORT_LIST", endpoints_of(plan, Role::server));
    add("PADDLE_HETER_TRAINER_IP_PORT_LIST", endpoints_of(plan, Role::heter_worker));
  }
  if (job.gloo.port != 0) {
    add("PADDLE_GLOO_RENDEZVOUS", "3");  // over HTTP
    add("PADDLE_GLOO_HTTP_ENDPOINT", job.gloo.text());
  }
}

/** Which GPUs; a choice of the user's by TUTTI_DEVICE stays. */
template <class Adder>
void add_gpus(const Plan& plan, const RankPlan& rank, const Job& job, const Adder& add) {
  const bool any = std::any_of(plan.ranks.begin(), plan.ranks.end(),
                               [](const RankPlan& other) { return !other.gpus.empty(); });
  if (!any) return;
  std::vector<std::string> numbers;
  for (const int gpu : rank.gpus) numbers.push_back(std::to_string(gpu));
  if (!environment("TUTTI_DEVICE")) add("TUTTI_DEVICE", numbers.empty() ? "cpu" : numbers.front());
  if (numbers.empty()) return;
  if (!job.gpus.empty()) add("CUDA_VISIBLE_DEVICES", job.gpus);
  add("FLAGS_selected_gpus", join_list(numbers));
}

}  // namespace

std::vector<Variable> carried_variables() {
  constexpr std::array kNames{"PYTHONPATH", "LD_LIBRARY_PATH", "VIRTUAL_ENV"};
  constexpr std::array kPrefixes{"TUTTI_", "OMP_", "NCCL_"};
  std::vector<Variable> carried;
  for (const std::string& entry : environment_with({})) {
    const auto equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    const auto begins = [&](const char* prefix) { return name.starts_with(prefix); };
    if (std::find(kNames.begin(), kNames.end(), name) != kNames.end() ||
        std::any_of(kPrefixes.begin(), kPrefixes.end(), begins)) {
      carried.push_back({name, entry.substr(equals + 1), true});
    }
  }
  return carried;
}

bool is_of_each_rank(std::string_view name) {
  constexpr std::array<std::string_view, 9> kNames{
      "TUTTI_RANK",       "TUTTI_WORLD_SIZE", "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE", "TUTTI_ROLE",
      "TUTTI_ROLE_INDEX", "TUTTI_ATTEMPT",    "TUTTI_TICKET",     "TUTTI_PROGRESS_FD"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

void forget_own_launch() {
  // Paddle's lists of roles: what a shell still has of another job would be taken for this one's.
  constexpr std::array kPrefixes{"OMPI_COMM_WORLD_",
                                 "PMIX_",
                                 "PMI_",
                                 "TORCHELASTIC_",
                                 "TUTTI_TICKET=",
                                 "PADDLE_PSERVERS_IP_PORT_LIST=",
                                 "PADDLE_HETER_TRAINER_IP_PORT_LIST="};
  for (const std::string& entry : environment_with({})) {
    const auto begins = [&](const char* prefix) { return entry.starts_with(prefix); };
    if (entry.starts_with("PMIX_MCA_")) continue;  // parameters, which the user may have set
    if (std::any_of(kPrefixes.begin(), kPrefixes.end(), begins)) {
      ::unsetenv(entry.substr(0, entry.find('=')).c_str());
    }
  }
}

void set_variable(RankPlan& rank, const Variable& variable) {
  const auto same = [&](const Variable& other) { return other.name == variable.name; };
  const auto known = std::find_if(rank.environment.begin(), rank.environment.end(), same);
  if (known != rank.environment.end()) {
    *known = variable;
  } else {
    rank.environment.push_back(variable);
  }
}

void add_contract(Plan& plan, const Job& job) {
  for (RankPlan& rank : plan.ranks) {
    const auto add = [&](const char* name, const std::string& value) {
      set_variable(rank, {name, value});
    };
    if (!job.ticket.empty()) set_variable(rank, {"TUTTI_TICKET", job.ticket, true});
    if (!job.secret.empty()) set_variable(rank, {"TUTTI_SECRET", job.secret, true});
    add_tutti(plan, rank, job, add);
    add_torch(plan, rank, job, add);
    add_paddle(plan, rank, job, add);
    add_gpus(plan, rank, job, add);
    if (!job.threads.empty()) add("OMP_NUM_THREADS", job.threads);
    // What a rank of Python's has printed is not lost with it, and is seen at once.
    if (!environment("PYTHONUNBUFFERED")) add("PYTHONUNBUFFERED", "1");
  }
}

}  // namespace tutti::launch
