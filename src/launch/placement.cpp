// Places the ranks of a job on machines.
#include "launch/placement.hpp"

#include <algorithm>
#include <utility>

#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "base/system.hpp"
#include "launch/process/lists.hpp"

namespace tutti::launch {
namespace {

/** A machine, and the option that names it. */
struct Named {
  const char* option;
  std::string machine;
};

/** The machines that are given the same command; the first of them obeys it. */
std::vector<Named> machines_with_this_command(const RunOptions& options) {
  std::vector<Named> named;
  for (const std::string& name : options.ips) named.push_back({"--ips", name});
  const auto add = [&](const char* option, const std::vector<Endpoint>& endpoints) {
    for (const Endpoint& endpoint : endpoints) named.push_back({option, endpoint.host});
  };
  add("--workers", options.workers);
  add("--heter_workers", options.heter_workers);
  add("--servers", options.servers);
  return named;
}

/** Machines that are named for ranks without roles: by --hosts, or else by a resource manager. */
std::vector<Host> named_hosts(const RunOptions& options) {
  return options.hosts.empty() && options.ips.empty() ? allocated_hosts() : options.hosts;
}

}  // namespace

std::optional<std::string> other_starter(const RunOptions& options) {
  const std::vector<Named> named = machines_with_this_command(options);
  const auto is_own = [](const Named& one) { return is_this_machine(one.machine); };
  const auto other = std::find_if_not(named.begin(), named.end(), is_own);
  if (other == named.end()) return std::nullopt;
  for (const auto& [option, machine] : named) {
    if (!is_loopback(machine)) continue;
    refuse(option, " names ", machine, " beside ", other->machine,
           ", which has one of its own: give names or addresses by which the machines reach each "
           "other");
  }
  if (other != named.begin()) return std::nullopt;
  if (std::any_of(named.begin(), named.end(), is_own)) return other->machine;
  if (!options.ips.empty()) {
    refuse("--ips names ", join_list(options.ips, ", "), ", but this machine, ", host_name(),
           ", is none of them");
  }
  return std::nullopt;
}

std::vector<Host> machines_of(const RunOptions& options, const Machine& machine) {
  if (machines_with_this_command(options).empty()) check_alone_in_step();
  std::vector<Host> hosts = options.has_roles() ? std::vector<Host>() : named_hosts(options);
  for (const std::string& name : options.ips) hosts.push_back({.name = name});
  for (const auto* list : {&options.workers, &options.heter_workers, &options.servers}) {
    for (const auto& [host, port] : *list) {
      hosts.push_back({.name = host, .slots = 1});
      if (port != 0) hosts.back().ports = {port};
    }
  }
  if (options.http_port && !options.servers.empty()) {  // of the first server's machine
    hosts[hosts.size() - options.servers.size()].ports.push_back(*options.http_port);
  }
  check_names(hosts);
  const auto is_own = [](const Host& host) { return is_this_machine(host.name); };
  if (std::all_of(hosts.begin(), hosts.end(), is_own)) return {};
  if (options.server_num && options.servers.empty()) {
    refuse("--server_num is for one machine: on several, --servers names them");
  }
  if (options.worker_num && options.workers.empty()) {
    refuse("--worker_num is for one machine: on several, --workers names them");
  }
  if (options.heter_worker_num && options.heter_workers.empty()) {
    refuse("--heter_worker_num is for one machine: on several, --heter_workers names them");
  }
  const std::size_t gpus = choose_gpus(options, machine).size();
  std::vector<Host> found;
  for (Host& host : hosts) {
    if (is_loopback(host.name)) host.name = machine.name;  // others have one of their own
    if (options.ranks || host.slots == 0) host.slots = count_ranks(options, machine, gpus);
    const auto same = [&](const Host& other) { return other.name == host.name; };
    const auto known = std::find_if(found.begin(), found.end(), same);
    if (known == found.end()) {
      found.push_back(host);
    } else {
      known->slots += host.slots;
      known->ports.insert(known->ports.end(), host.ports.begin(), host.ports.end());
    }
  }
  return found;
}

int count_ranks(const RunOptions& options, const Machine& machine, std::size_t gpus) {
  using Of = RankCount::Of;
  const RankCount ranks = options.ranks.value_or(RankCount{});
  if (!options.ranks) return static_cast<int>(std::max<std::size_t>(gpus, 1));
  if (ranks.of == Of::number) return ranks.number;
  if (gpus > 0) return static_cast<int>(gpus);
  if (ranks.of == Of::gpus) refuse("--nproc_per_node gpu: ", machine.name, " has no GPU");
  return static_cast<int>(std::max<std::size_t>(machine.processors.size(), 1));
}

int own_slots(const RunOptions& options) {
  const std::vector<Host> hosts = named_hosts(options);
  int slots = 0;
  for (const Host& host : hosts) slots += hosts.size() > 1 ? std::max(host.slots, 1) : host.slots;
  // One task is what resource managers give to who starts the others.
  const bool asked = !options.hosts.empty() || slots > 1;
  return asked && !options.ranks ? slots : 0;
}

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

}  // namespace tutti::launch
