// Makes the plan of a job on this machine.
#include "launch/plan.hpp"

#include <algorithm>
#include <array>
#include <map>

#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "launch/contract.hpp"
#include "launch/lists.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::launch {
namespace {

/** How many ranks without roles this machine gets. */
int count_ranks(const RunOptions& options, const Machine& machine, std::size_t gpus) {
  using Of = RankCount::Of;
  const RankCount ranks = options.ranks.value_or(RankCount{});
  if (!options.ranks) return static_cast<int>(std::max<std::size_t>(gpus, 1));
  if (ranks.of == Of::number) return ranks.number;
  if (gpus > 0) return static_cast<int>(gpus);
  if (ranks.of == Of::gpus) refuse("--nproc_per_node gpu: ", machine.name, " has no GPU");
  return static_cast<int>(std::max<std::size_t>(machine.processors.size(), 1));
}

void add_ranks(Plan& plan, Role role, const std::vector<Endpoint>& endpoints) {
  int index = 0;
  for (const Endpoint& endpoint : endpoints) {
    const int rank = static_cast<int>(plan.ranks.size());
    RankPlan planned;
    planned.rank = rank;
    planned.role = role;
    planned.index = index++;
    planned.host = plan.host;
    planned.local_rank = rank;
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
    add_ranks(plan, Role::worker, endpoints_or({}, count_ranks(options, machine, gpus)));
    return;
  }
  add_ranks(plan, Role::worker, endpoints_or(options.workers, options.worker_num.value_or(0)));
  add_ranks(plan, Role::heter_worker,
            endpoints_or(options.heter_workers, options.heter_worker_num.value_or(0)));
  add_ranks(plan, Role::server, endpoints_or(options.servers, options.server_num.value_or(0)));
}

void give_ports(Plan& plan, ReservedPorts& ports) {
  for (RankPlan& rank : plan.ranks) {
    if (!is_this_machine(rank.endpoint.host)) {
      refuse(rank.name(), " is to run on ", rank.endpoint.host, ", which is not this machine (",
             plan.host, ")");
    }
    if (rank.endpoint.port == 0) {
      rank.endpoint.port = ports.take();
    } else {
      ports.take(rank.endpoint.port, std::string(rank.name()) + " at " + rank.endpoint.text());
    }
  }
}

/** Those of --gpus, which are among those that the user has made visible, or else the latter. */
std::vector<std::string> choose_gpus(const RunOptions& options, const Machine& machine) {
  if (!options.gpus) return machine.gpus;
  if (environment("CUDA_VISIBLE_DEVICES")) {
    for (const std::string& gpu : *options.gpus) {
      if (std::find(machine.gpus.begin(), machine.gpus.end(), gpu) == machine.gpus.end()) {
        refuse("--gpus names ", gpu, ", but CUDA_VISIBLE_DEVICES is ", join_list(machine.gpus));
      }
    }
  }
  return *options.gpus;
}

/** Ranks without roles have one GPU each, or as many as all have alike; those with roles share. */
void give_gpus(Plan& plan, const RunOptions& options, int gpus) {
  const Role role = plan.count(Role::heter_worker) > 0 ? Role::heter_worker : Role::worker;
  const int users = plan.count(role);
  if (!plan.has_roles && gpus % users != 0) {
    if (options.gpus) {
      refuse("--gpus names ", gpus, ", which ", users, " ranks cannot share alike");
    }
    return;  // whoever uses GPUs chooses
  }
  for (RankPlan& rank : plan.ranks) {
    if (rank.role != role) continue;
    if (plan.has_roles) {
      rank.gpus = {rank.index % gpus};
    } else {
      for (int i = 0; i < gpus / users; ++i) rank.gpus.push_back(rank.index * (gpus / users) + i);
    }
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

std::string threads_of_each(Plan& plan, const Machine& machine) {
  if (environment("OMP_NUM_THREADS")) return {};
  auto threads =
      std::to_string(std::max<std::size_t>(1, machine.processors.size() / plan.ranks.size()));
  plan.notes.push_back("OMP_NUM_THREADS=" + threads);
  return threads;
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

Plan make_plan(const RunOptions& options, const Machine& machine, int attempt,
               ReservedPorts& ports) {
  Plan plan;
  plan.host = machine.name;
  plan.command = resolve_program(options.program, options.module);
  plan.has_roles = options.has_roles();
  const std::vector<std::string> gpus = choose_gpus(options, machine);
  place_ranks(plan, options, machine, gpus.size());
  check_shared_memory(static_cast<int>(plan.ranks.size()));
  give_ports(plan, ports);
  give_processors(plan, options.binding, machine);
  if (machine.has_gpus && !gpus.empty()) give_gpus(plan, options, static_cast<int>(gpus.size()));
  if (!machine.has_gpus && options.gpus) {
    plan.notes.push_back("no GPU was found here, all ranks use the CPU");
  }

  Job job;
  job.ticket = UniqueId::create().to_string();
  job.attempt = attempt;
  job.master = {.host = "127.0.0.1", .port = ports.take()};
  if (plan.has_roles) {
    const auto first_server = std::find_if(plan.ranks.begin(), plan.ranks.end(),
                                           [](const auto& r) { return r.role == Role::server; });
    if (options.http_port) ports.take(*options.http_port, "--http_port");
    job.gloo = {first_server->endpoint.host, options.http_port ? *options.http_port : ports.take()};
  }
  if (options.gpus) job.gpus = join_list(gpus);
  job.threads = threads_of_each(plan, machine);
  add_contract(plan, job);
  for (RankPlan& rank : plan.ranks) {
    rank.environment.insert(rank.environment.end(), options.environment.begin(),
                            options.environment.end());
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
