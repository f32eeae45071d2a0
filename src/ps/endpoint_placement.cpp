// Finds a process' place by a list of endpoints, which is given or in the environment.
#include "ps/endpoint_placement.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "base/text.hpp"
#include "comm/communicator/endpoints.hpp"
#include "ps/placement.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

constexpr const char* kServers = "PADDLE_PSERVERS_IP_PORT_LIST";
constexpr const char* kHeterWorkers = "PADDLE_HETER_TRAINER_IP_PORT_LIST";
constexpr const char* kTrainers = "PADDLE_TRAINERS_NUM";
constexpr const char* kTrainer = "PADDLE_TRAINER_ID";
constexpr const char* kRole = "TRAINING_ROLE";
constexpr const char* kCurrent = "PADDLE_CURRENT_ENDPOINT";
constexpr const char* kAddress = "POD_IP";
constexpr const char* kPort = "PADDLE_PORT";

/** The value of a variable that is `meaning`. */
std::string required(const char* name, const std::string& meaning) {
  if (auto value = environment(name)) return *std::move(value);
  refuse(name, " is not set: it is ", meaning);
}

int number_in(const char* name, const std::string& meaning, int least, int most) {
  const std::string text = required(name, meaning);
  const auto number = parse_number<int>(text);
  if (number && *number >= least && *number <= most) return *number;
  refuse(name, " is '", text, "', but must be a number from ", least, " to ", most);
}

/** "host:port" of the server that this process is. */
std::string own_endpoint() {
  const auto current = environment(kCurrent);
  const auto address = environment(kAddress);
  const auto port = environment(kPort);
  if (!current && !(address && port)) {
    refuse(kRole, " is PSERVER, but neither ", kCurrent, " nor ", kAddress, " and ", kPort,
           " say at which endpoint this server is");
  }
  if (!address || !port) return *current;
  std::string endpoint = *address + ":" + *port;
  if (current && *current != endpoint) {
    refuse(kCurrent, " is ", *current, ", but ", kAddress, " and ", kPort, " are ", endpoint);
  }
  return endpoint;
}

int place_of_own_endpoint(const Endpoints& servers) {
  const std::string own = own_endpoint();
  const auto at = std::find(servers.all.begin(), servers.all.end(), own);
  if (at == servers.all.end()) {
    refuse("this server is at ", own, ", which is not in ", kServers, ", ", servers.text());
  }
  return static_cast<int>(at - servers.all.begin());
}

}  // namespace

std::unique_ptr<Placement::Impl> place_by_endpoints(const EndpointPlace& place) {
  const Endpoints servers = parse_endpoints(place.list_name, place.list);
  if (place.workers < 1) {
    refuse(place.workers_name, " is ", place.workers, ", but must be at least 1");
  }
  const int ranks = place.serves ? servers.count() : place.workers;
  if (place.index < 0 || place.index >= ranks) {
    refuse(place.index_name, " is ", place.index, ", but must be from 0 to ", ranks - 1, ": ",
           place.serves ? place.list_name : place.workers_name, " says that there are ", ranks,
           place.serves ? " servers" : " workers");
  }
  auto impl = std::make_unique<Placement::Impl>();
  impl->number_ranks(place.workers, servers.count());
  (place.serves ? impl->server : impl->worker) = place.index;
  impl->endpoints = servers.all;
  try {
    for (int i = 0; i < servers.count(); ++i) {
      if (place.serves && i != place.index) continue;
      impl->resolved.push_back(mpi::resolve(servers.all[static_cast<std::size_t>(i)]));
    }
  } catch (const InvalidArgument& error) {
    refuse(place.list_name, ": ", error.what());
  }
  return impl;
}

Placement Placement::environment() {
  if (tutti::environment("TUTTI_ROLE") && !tutti::environment(kServers)) {
    refuse(
        "tutti run has started this process, but no servers: give it --server_num N and "
        "--worker_num N");
  }
  const std::string role =
      required(kRole, "TRAINER or PSERVER, and tutti run --server_num N --worker_num N sets it");
  const bool serves = role == "PSERVER";
  const bool is_heter = role == "HETER_TRAINER";
  if (!serves && !is_heter && role != "TRAINER") {
    refuse(kRole, " is '", role, "', but must be TRAINER, HETER_TRAINER or PSERVER");
  }
  const std::string servers = required(kServers, "the list of servers, host:port,host:port");
  const int trainers =
      number_in(kTrainers, "the number of workers", 1, std::numeric_limits<int>::max() / 2);
  const auto heters = tutti::environment(kHeterWorkers);
  const int heter_workers = heters ? parse_endpoints(kHeterWorkers, *heters).count() : 0;
  EndpointPlace place{.list_name = kServers,
                      .list = servers,
                      .workers_name = kTrainers,
                      .workers = trainers + heter_workers,
                      .index_name = serves ? kServers : kTrainer,
                      .serves = serves};
  if (serves) {
    place.index = place_of_own_endpoint(parse_endpoints(kServers, servers));
  } else {  // heter_workers are workers that come after the others
    const int most = (is_heter ? heter_workers : trainers) - 1;
    place.index =
        number_in(kTrainer, "the number of this worker", 0, most) + (is_heter ? trainers : 0);
  }
  auto impl = place_by_endpoints(place);
  if (tutti::environment("TUTTI_TICKET")) {
    impl->own_world.emplace();
    const std::size_t places = impl->workers.size() + impl->servers.size();
    if (std::cmp_not_equal(impl->own_world->world_size(), places)) {
      refuse("this job has ", impl->own_world->world_size(), " ranks, but ", kTrainers, " and ",
             kServers, " are of ", places, " workers and servers");
    }
    impl->world = &*impl->own_world;
  }
  return Placement(std::move(impl));
}

}  // namespace tutti::ps
