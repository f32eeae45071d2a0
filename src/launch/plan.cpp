// Makes the plan of a job on this machine.
#include "launch/plan.hpp"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>

#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "base/text.hpp"
#include "launch/contract.hpp"
#include "launch/placement.hpp"
#include "launch/process/lists.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::launch {
namespace {

void add_ranks(Plan& plan, Role role, const std::vector<Endpoint>& endpoints) {
  int index = 0;
  for (const Endpoint& endpoint : endpoints) {
    RankPlan planned;
    planned.rank = static_cast<int>(plan.ranks.size());
    planned.role = role;
    planned.index = index++;
    planned.host = plan.machines.empty() ? plan.host : endpoint.host;
    planned.local_rank = static_cast<int>(plan.ranks_of(planned.host).size());
    planned.endpoint = endpoint;
    plan.ranks.push_back(std::move(planned));
  }
}

/** Those of a list, or else `number` on this machine. */
std::vector<Endpoint> endpoints_or(const std::vector<Endpoint>& list, int number) {
  if (!list.empty()) return list;
  return std::vector<Endpoint>(static_cast<std::size_t>(number), Endpoint{.host = "127.0.0.1"});
}

void place_ranks(Plan& plan, const RunOptions& options, const Machine& machine, std::size_t gpus) {
  if (!options.has_roles()) {
    std::vector<Endpoint> workers;
    for (const Host& host : plan.machines) {
      workers.insert(workers.end(), static_cast<std::size_t>(host.slots), {.host = host.name});
    }
    if (workers.empty()) {
      const int slots = own_slots(options);
      workers = endpoints_or({}, slots != 0 ? slots : count_ranks(options, machine, gpus));
    }
    add_ranks(plan, Role::worker, workers);
    return;
  }
  add_ranks(plan, Role::worker, endpoints_or(options.workers, options.worker_num.value_or(0)));
  add_ranks(plan, Role::heter_worker,
            endpoints_or(options.heter_workers, options.heter_worker_num.value_or(0)));
  add_ranks(plan, Role::server, endpoints_or(options.servers, options.server_num.value_or(0)));
}

/** Ports of this machine that are free, or of others that were when these were asked. */
class Ports {
 public:
  Ports(const PlanSite& site, ReservedPorts& own) : site_(site), own_(own) {}

  int take(const std::string& host) {
    if (site_.machines.empty()) return own_.take();
    int& taken = taken_[host];
    const auto machine = site_.checked.find(host);
    const std::size_t seen = machine != site_.checked.end() ? machine->second.ports.size() : 0;
    const auto next = static_cast<std::size_t>(taken++);
    return next < seen ? machine->second.ports[next] : first_unseen_ + static_cast<int>(next);
  }
  void take(const Endpoint& endpoint, const std::string& what) {
    if (is_this_machine(endpoint.host)) own_.take(endpoint.port, what);
  }

 private:
  const PlanSite& site_;
  ReservedPorts& own_;
  std::map<std::string, int> taken_;
  int first_unseen_ = 20'000 + ::getpid() % 10'000;
};

void give_ports(Plan& plan, Ports& ports) {
  for (RankPlan& rank : plan.ranks) {
    if (rank.endpoint.port == 0) {
      rank.endpoint.port = ports.take(rank.host);
    } else {
      ports.take(rank.endpoint, std::string(rank.name()) + " at " + rank.endpoint.text());
    }
  }
}

/** Of the ranks of a machine, those without roles have one GPU each, or as many as all have alike;
 * those with roles share. */
void give_gpus(Plan& plan, const std::string& host, const RunOptions& options, int gpus) {
  const Role role = plan.count(Role::heter_worker) > 0 ? Role::heter_worker : Role::worker;
  std::vector<RankPlan*> ranks = plan.ranks_of(host);
  std::erase_if(ranks, [&](const RankPlan* rank) { return rank->role != role; });
  const int users = static_cast<int>(ranks.size());
  if (users == 0) return;
  if (!plan.has_roles && gpus % users != 0) {
    if (options.gpus) {
      refuse("--gpus names ", gpus, ", which ", users, " ranks cannot share alike");
    }
    plan.notes.push_back(std::to_string(users) + " ranks cannot share " + std::to_string(gpus) +
                         " GPUs alike" + (plan.machines.empty() ? "" : " on " + host) +
                         ", so that each chooses its own");
    return;
  }
  for (int user = 0; user < users; ++user) {
    std::vector<int>& own = ranks[static_cast<std::size_t>(user)]->gpus;
    if (plan.has_roles) {
      own = {user % gpus};
    } else {
      for (int i = 0; i < gpus / users; ++i) own.push_back(user * (gpus / users) + i);
    }
  }
}

/**
 * Whether the user has said which GPUs are used on all of several machines: by --gpus, or by what
 * is visible here, if that is numbers; a resource manager says it on each machine.
 */
bool names_gpus_of_all(const RunOptions& options, const Machine& machine) {
  if (options.gpus) return true;
  const bool asked = !options.hosts.empty() || !options.ips.empty() || options.has_roles();
  return asked && environment("CUDA_VISIBLE_DEVICES") && machine.has_gpus &&
         !machine.gpus.empty() &&
         std::all_of(machine.gpus.begin(), machine.gpus.end(),
                     [](const std::string& gpu) { return parse_number<int>(gpu).has_value(); });
}

/** Without a word of the user's, how many GPUs each of several machines has is for it to say. */
void give_devices(Plan& plan, const RunOptions& options, const Machine& machine, int gpus) {
  if (!plan.machines.empty()) {
    if (!names_gpus_of_all(options, machine)) return;
    for (const Host& host : plan.machines) give_gpus(plan, host.name, options, gpus);
    return;
  }
  if (gpus == 0) return;
  if (machine.has_gpus) {
    give_gpus(plan, plan.host, options, gpus);
  } else {
    plan.notes.push_back("no GPU was found here, all ranks use the CPU");
  }
}

/** Cuts `cpus` into as many runs as there are ranks, and gives each rank its own. */
void give_runs(const std::vector<int>& cpus, const std::vector<RankPlan*>& ranks) {
  const std::size_t each = std::max<std::size_t>(1, cpus.size() / ranks.size());
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::size_t first = i * each % cpus.size();
    const std::size_t last = std::min(first + each, cpus.size());
    ranks[i]->cpus.assign(cpus.begin() + static_cast<std::ptrdiff_t>(first),
                          cpus.begin() + static_cast<std::ptrdiff_t>(last));
  }
}

void give_processors(Plan& plan, Binding binding, const Machine& machine) {
  const std::size_t ranks = plan.ranks.size();
  if (binding == Binding::automatic) {
    binding = ranks <= machine.processors.size() ? Binding::core : Binding::none;
  }
  if (binding == Binding::none || machine.processors.empty()) return;
  if (binding == Binding::core) {
    if (ranks > machine.processors.size()) {
      refuse("--bind core: ", ranks, " ranks, but ", machine.name, " has ",
             machine.processors.size(), " processors for them");
    }
    std::vector<int> all;
    for (const Processor& processor : machine.processors) all.push_back(processor.number);
    std::vector<RankPlan*> everybody;
    for (RankPlan& rank : plan.ranks) everybody.push_back(&rank);
    return give_runs(all, everybody);
  }
  std::map<int, std::vector<int>> sockets;
  for (const Processor& processor : machine.processors) {
    sockets[processor.socket].push_back(processor.number);
  }
  auto socket = sockets.begin();
  for (RankPlan& rank : plan.ranks) {
    rank.cpus = socket->second;
    if (++socket == sockets.end()) socket = sockets.begin();
  }
}

/** Of one rank: what the machine has that has fewest processors for each of its ranks. */
std::string threads_of_each(Plan& plan, const RunOptions& options, const PlanSite& site) {
  constexpr const char* kName = "OMP_NUM_THREADS";
  const auto is_it = [&](const Variable& variable) { return variable.name == kName; };
  const bool given = std::any_of(options.environment.begin(), options.environment.end(), is_it);
  if (given || environment(kName)) return {};
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const RankPlan& rank : plan.ranks) {
    const auto checked = site.checked.find(rank.host);
    const std::size_t processors =
        checked == site.checked.end() ? site.machine.processors.size() : checked->second.processors;
    least = std::min(least, processors / plan.ranks_of(rank.host).size());
  }
  auto threads = std::to_string(std::max<std::size_t>(1, least));
  plan.notes.push_back("OMP_NUM_THREADS=" + threads);
  return threads;
}

void check_tee(const Tee& tee, const Plan& plan) {
  const int count = static_cast<int>(plan.ranks.size());
  if (tee.ranks.empty() || *tee.ranks.rbegin() < count) return;
  refuse("--tee names rank ", *tee.ranks.rbegin(), ", but there are ", count, ", counted from 0");
}

std::string numbers_text(const std::vector<int>& numbers) {
  std::vector<std::string> texts;
  for (const int number : numbers) texts.push_back(std::to_string(number));
  return join_list(texts);
}

}  // namespace

const char* name_of(Role role) {
  switch (role) {
    case Role::server:
      return "server";
    case Role::heter_worker:
      return "heter_worker";
    case Role::worker:
      break;
  }
  return "worker";
}

std::string RankPlan::name() const {
  return std::string(name_of(role)) + " " + std::to_string(index);
}

std::vector<RankPlan*> Plan::ranks_of(const std::string& machine) {
  std::vector<RankPlan*> found;
  for (RankPlan& rank : ranks) {
    if (rank.host == machine) found.push_back(&rank);
  }
  return found;
}

int Plan::count(Role role) const {
  return static_cast<int>(std::count_if(ranks.begin(), ranks.end(),
                                        [&](const RankPlan& rank) { return rank.role == role; }));
}

std::string Plan::describe() const {
  std::vector<std::string> parts;
  for (const Role role : {Role::server, Role::worker, Role::heter_worker}) {
    const int number = count(role);
    if (number == 0) continue;
    parts.push_back(std::to_string(number) + " " + name_of(role) + (number == 1 ? "" : "s"));
  }
  return join_list(parts, ", ");
}

Plan make_plan(const RunOptions& options, const PlanSite& site, int attempt, ReservedPorts& ports) {
  const Machine& machine = site.machine;
  Ports free_ports(site, ports);
  Plan plan;
  plan.host = machine.name;
  plan.machines = site.machines;
  plan.command = resolve_program(options.program, options.module);
  plan.has_roles = options.has_roles();
  const std::vector<std::string> gpus = choose_gpus(options, machine);
  place_ranks(plan, options, machine, gpus.size());
  check_tee(options.tee, plan);
  give_ports(plan, free_ports);
  give_devices(plan, options, machine, static_cast<int>(gpus.size()));

  Job job;
  job.attempt = attempt;
  job.master = {.host = "127.0.0.1"};
  if (plan.machines.empty()) {
    check_shared_memory(static_cast<int>(plan.ranks.size()));
    give_processors(plan, options.binding, machine);
    job.ticket = UniqueId::create().to_string();
  } else {
    std::vector<std::string> names;
    for (const Host& host : plan.machines) names.push_back(host.name);
    plan.host = join_list(names, ", ");
    job.master.host = plan.ranks.front().host;
    if (plan.has_roles)
      job.secret = environment("TUTTI_SECRET").value_or(UniqueId::create().to_string());
  }
  job.master.port = free_ports.take(plan.ranks.front().host);
  if (plan.has_roles) {
    const auto first_server = std::find_if(plan.ranks.begin(), plan.ranks.end(),
                                           [](const auto& r) { return r.role == Role::server; });
    job.gloo = {first_server->endpoint.host, options.http_port.value_or(0)};
    if (options.http_port) {
      free_ports.take(job.gloo, "--http_port");
    } else {
      job.gloo.port = free_ports.take(first_server->host);
    }
  }
  if (options.gpus || (!plan.machines.empty() && names_gpus_of_all(options, machine))) {
    job.gpus = join_list(gpus);
  }
  job.threads = threads_of_each(plan, options, site);
  if (!plan.machines.empty()) {
    const auto carried = carried_variables();
    for (RankPlan& rank : plan.ranks) rank.environment = carried;
  }
  add_contract(plan, job);
  for (const Variable& variable : options.environment) {
    if (is_of_each_rank(variable.name))
      refuse("--env ", variable.name, ": tutti run sets it itself");
    for (RankPlan& rank : plan.ranks) set_variable(rank, variable);
  }
  return plan;
}

void set_logs(Plan& plan, const std::filesystem::path& folder) {
  for (RankPlan& rank : plan.ranks) {
    rank.log =
        folder / (std::string(name_of(rank.role)) + "." + std::to_string(rank.index) + ".log");
  }
}

std::string describe(const Plan& plan) {
  std::string text = plan.describe() + " on " + plan.host + ": " + plan.command.front() + "\n";
  for (const RankPlan& rank : plan.ranks) {
    text += "\n" + rank.name() + ": rank " + std::to_string(rank.rank);
    if (!rank.cpus.empty()) text += ", on processors " + numbers_text(rank.cpus);
    if (!rank.log.empty()) text += ", log " + rank.log.string();
    text += "\n";
    for (const Variable& variable : rank.environment) {
      text +=
          "  " + variable.name + (variable.secret ? " (not shown)" : "=" + variable.value) + "\n";
    }
  }
  return text;
}

}  // namespace tutti::launch
