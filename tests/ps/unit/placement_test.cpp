// Who is a worker and who a server: by ranks, by endpoints, and by the environment.
#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "comm/mpi/meeting/named_endpoint.hpp"
#include "ps/placement.hpp"
#include "support/thrown.hpp"
#include "support/world.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/fleet.hpp"

namespace tutti::ps {
namespace {

using tutti::test::text_of;
using Variables = std::map<std::string, std::string>;

/** Sets these variables, and no other that environment() reads. */
class Environment {
 public:
  explicit Environment(const Variables& variables) {
    for (const char* name : {"TRAINING_ROLE", "PADDLE_TRAINERS_NUM", "PADDLE_PSERVERS_IP_PORT_LIST",
                             "PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_TRAINER_ID",
                             "PADDLE_CURRENT_ENDPOINT", "POD_IP", "PADDLE_PORT", "TUTTI_ROLE",
                             "TUTTI_TICKET", "TUTTI_RANK", "TUTTI_WORLD_SIZE"}) {
      ::unsetenv(name);
    }
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  }
};

// As the document of Paddle's parameter server has them.
const Variables kServer{{"PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:36000,127.0.0.2:36000"},
                        {"TRAINING_ROLE", "PSERVER"},
                        {"POD_IP", "127.0.0.2"},
                        {"PADDLE_PORT", "36000"},
                        {"PADDLE_TRAINERS_NUM", "2"}};
const Variables kTrainer{{"PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1:36000,127.0.0.2:36000"},
                         {"TRAINING_ROLE", "TRAINER"},
                         {"PADDLE_TRAINERS_NUM", "2"},
                         {"PADDLE_TRAINER_ID", "1"}};

Variables changed(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

TEST(Placement, ReadsPaddlesVariablesOfAServer) {
  const Environment environment(kServer);
  const Placement place = Placement::environment();
  EXPECT_TRUE(place.is_server());
  EXPECT_FALSE(place.is_worker());
  EXPECT_EQ(place.server_index(), 1);
  EXPECT_EQ(place.worker_index(), -1);
  EXPECT_EQ(place.workers(), 2);
  EXPECT_EQ(place.servers(), 2);
  EXPECT_EQ(place.server_endpoints()[1], "127.0.0.2:36000");
  EXPECT_EQ(place.impl().servers[1].rank, 3);
  EXPECT_EQ(place.impl().servers[1].text, "server 1");
}

TEST(Placement, ReadsPaddlesVariablesOfAWorker) {
  const Environment environment(kTrainer);
  const Placement place = Placement::environment();
  EXPECT_TRUE(place.is_worker());
  EXPECT_FALSE(place.is_server());
  EXPECT_EQ(place.worker_index(), 1);
  EXPECT_EQ(place.server_index(), -1);
  EXPECT_EQ(place.impl().workers[1].rank, 1);
}

TEST(Placement, ACurrentEndpointDoesForAServer) {
  Variables variables = changed(kServer, "PADDLE_CURRENT_ENDPOINT", "127.0.0.1:36000");
  variables.erase("POD_IP");
  const Environment environment(variables);
  EXPECT_EQ(Placement::environment().server_index(), 0);
}

TEST(Placement, HeterWorkersAreWorkersAfterTheOthers) {
  Variables variables = changed(kTrainer, "TRAINING_ROLE", "HETER_TRAINER");
  variables["PADDLE_HETER_TRAINER_IP_PORT_LIST"] = "127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002";
  const Environment environment(variables);
  const Placement place = Placement::environment();
  EXPECT_EQ(place.worker_index(), 3);
  EXPECT_EQ(place.workers(), 5);
  EXPECT_EQ(place.impl().servers[0].rank, 5);
}

std::string refusal_of(const Variables& variables) {
  const Environment environment(variables);
  return text_of<InvalidArgument>([] { Placement::environment(); });
}

std::string refusal_without(Variables variables, const std::string& name) {
  variables.erase(name);
  return refusal_of(variables);
}

TEST(Placement, NamesTheVariableThatIsMissing) {
  for (const char* name : {"TRAINING_ROLE", "PADDLE_TRAINERS_NUM", "PADDLE_TRAINER_ID",
                           "PADDLE_PSERVERS_IP_PORT_LIST"}) {
    EXPECT_TRUE(refusal_without(kTrainer, name).starts_with(name + std::string(" is not set")))
        << refusal_without(kTrainer, name);
  }
  for (const char* name : {"POD_IP", "PADDLE_PORT"}) {
    EXPECT_EQ(refusal_without(kServer, name),
              "TRAINING_ROLE is PSERVER, but neither PADDLE_CURRENT_ENDPOINT nor POD_IP and "
              "PADDLE_PORT say at which endpoint this server is");
  }
  EXPECT_EQ(refusal_of({{"TUTTI_ROLE", "worker"}, {"TRAINING_ROLE", "TRAINER"}}),
            "tutti run has started this process, but no servers: give it --server_num N and "
            "--worker_num N");
}

TEST(Placement, NamesTheVariableThatIsWrong) {
  EXPECT_EQ(refusal_of(changed(kTrainer, "TRAINING_ROLE", "SERVER")),
            "TRAINING_ROLE is 'SERVER', but must be TRAINER, HETER_TRAINER or PSERVER");
  EXPECT_EQ(refusal_of(changed(kTrainer, "PADDLE_TRAINER_ID", "2")),
            "PADDLE_TRAINER_ID is '2', but must be a number from 0 to 1");
  EXPECT_EQ(refusal_of(changed(kTrainer, "PADDLE_TRAINER_ID", "one")),
            "PADDLE_TRAINER_ID is 'one', but must be a number from 0 to 1");
  EXPECT_TRUE(refusal_of(changed(kTrainer, "PADDLE_TRAINERS_NUM", "0"))
                  .starts_with("PADDLE_TRAINERS_NUM is '0'"));
  EXPECT_EQ(refusal_of(changed(kTrainer, "PADDLE_PSERVERS_IP_PORT_LIST", "127.0.0.1")),
            "PADDLE_PSERVERS_IP_PORT_LIST is '127.0.0.1', but must be a list of host:port, with "
            "commas between");
  EXPECT_EQ(refusal_of(changed(kServer, "PADDLE_PORT", "36001")),
            "this server is at 127.0.0.2:36001, which is not in PADDLE_PSERVERS_IP_PORT_LIST, "
            "127.0.0.1:36000,127.0.0.2:36000");
  EXPECT_EQ(refusal_of(changed(kServer, "PADDLE_CURRENT_ENDPOINT", "127.0.0.1:36000")),
            "PADDLE_CURRENT_ENDPOINT is 127.0.0.1:36000, but POD_IP and PADDLE_PORT are "
            "127.0.0.2:36000");
}

TEST(Placement, AHostThatIsNoneIsRefusedByName) {
  const std::string text =
      refusal_of(changed(kTrainer, "PADDLE_PSERVERS_IP_PORT_LIST", "no-such-host.invalid:6170"));
  EXPECT_TRUE(
      text.starts_with("PADDLE_PSERVERS_IP_PORT_LIST: the host of "
                       "no-such-host.invalid:6170 cannot be looked up"))
      << text;
}

TEST(Placement, EndpointsAreArguments) {
  const Placement server = Placement::server("127.0.0.1:6170,localhost:6171", 1, 3);
  EXPECT_EQ(server.server_index(), 1);
  EXPECT_EQ(server.workers(), 3);
  EXPECT_EQ(server.server_endpoints(),
            std::vector<std::string>({"127.0.0.1:6170", "localhost:6171"}));
  EXPECT_EQ(Placement::worker("127.0.0.1:6170", 2, 3).worker_index(), 2);
  EXPECT_EQ(text_of<InvalidArgument>([] { Placement::worker("127.0.0.1:6170", 3, 3); }),
            "index is 3, but must be from 0 to 2: workers says that there are 3 workers");
  EXPECT_EQ(text_of<InvalidArgument>([] { Placement::server("127.0.0.1:6170", -1, 3); }),
            "index is -1, but must be from 0 to 0: endpoints says that there are 1 servers");
  EXPECT_EQ(text_of<InvalidArgument>([] { Placement::server("127.0.0.1:6170", 0, 0); }),
            "workers is 0, but must be at least 1");
  EXPECT_EQ(text_of<InvalidArgument>([] { Placement::server("a:1,a:1", 0, 1); }),
            "endpoints has a:1 twice, but each process has an endpoint of its own");
}

/** What `place` makes of each of `ranks` ranks that are threads. */
template <class Place>
std::vector<std::optional<Placement>> on_ranks(int ranks, const Place& place) {
  const UniqueId id = UniqueId::create();
  std::vector<std::optional<Placement>> places(static_cast<std::size_t>(ranks));
  tutti::test::on_threads(ranks, [&](int rank) {
    Communicator world(rank, ranks, id, tutti::test::short_timeout());
    places[static_cast<std::size_t>(rank)].emplace(place(world));
  });
  return places;
}

TEST(Placement, TheLastRanksAreServers) {
  const auto places =
      on_ranks(5, [](Communicator& world) { return Placement::last_ranks(world, 2); });
  for (int rank = 0; rank < 5; ++rank) {
    const Placement& place = *places[static_cast<std::size_t>(rank)];
    EXPECT_EQ(place.worker_index(), rank < 3 ? rank : -1);
    EXPECT_EQ(place.server_index(), rank < 3 ? -1 : rank - 3);
    EXPECT_EQ(place.workers(), 3);
    EXPECT_EQ(place.servers(), 2);
    EXPECT_TRUE(place.server_endpoints().empty());
  }
}

TEST(Placement, AtLeastOneRankIsAWorker) {
  on_ranks(2, [](Communicator& world) {
    EXPECT_EQ(text_of<InvalidArgument>([&] { Placement::last_ranks(world, 2); }),
              "servers is 2, but must be from 1 to 1: of 2 ranks at least one is a worker");
    EXPECT_THROW(Placement::last_ranks(world, 0), InvalidArgument);
    return Placement::last_ranks(world, 1);
  });
}

TEST(Placement, AWorldOfOneHasNoRankForServers) {
  on_ranks(1, [](Communicator& world) {
    EXPECT_EQ(
        text_of<InvalidArgument>([&] { Placement::last_ranks(world, 1); }),
        "servers is 1, but of 1 rank none is left for servers: a worker that is alone has its "
        "server in a thread (servers=\"thread\")");
    return Placement::threads(world);
  });
}

TEST(Placement, AJobOfAnotherSizeThanTheListsIsRefused) {
  Variables variables = kTrainer;
  variables["TUTTI_TICKET"] = UniqueId::create().to_string();
  variables["TUTTI_RANK"] = "0";
  variables["TUTTI_WORLD_SIZE"] = "1";
  const Environment environment(variables);
  EXPECT_EQ(
      text_of<InvalidArgument>([] { Placement::environment(); }),
      "this job has 1 ranks, but PADDLE_TRAINERS_NUM and PADDLE_PSERVERS_IP_PORT_LIST are of 4 "
      "workers and servers");
}

TEST(Placement, OneServerBesideTheWorkersOfAHost) {
  const auto places =
      on_ranks(3, [](Communicator& world) { return Placement::one_per_host(world); });
  EXPECT_EQ(places[1]->worker_index(), 1);
  EXPECT_EQ(places[2]->server_index(), 0);
  EXPECT_EQ(places[0]->workers(), 2);
  const UniqueId id = UniqueId::create();
  Communicator alone(0, 1, id);
  EXPECT_EQ(text_of<InvalidArgument>([&] { Placement::one_per_host(alone); }),
            "rank 0 is alone on its host, but there must be a worker beside the server of each "
            "host");
}

TEST(Placement, EachRankMayHaveAServersThread) {
  const auto places = on_ranks(2, [](Communicator& world) { return Placement::threads(world); });
  EXPECT_EQ(places[1]->worker_index(), 1);
  EXPECT_EQ(places[1]->server_index(), 1);
  EXPECT_EQ(places[1]->impl().servers[1].rank, 1);
}

TEST(NamedEndpoint, APortInUseIsNamed) {
  const mpi::NamedEndpoint anywhere = mpi::resolve("localhost:0");
  ASSERT_EQ(anywhere.addresses.size(), 1U);
  const mpi::Socket first = mpi::listen_at(anywhere);
  sockaddr_in bound{};
  socklen_t length = sizeof bound;
  ASSERT_EQ(::getsockname(first.get(), reinterpret_cast<sockaddr*>(&bound), &length), 0);
  const std::string name = "localhost:" + std::to_string(ntohs(bound.sin_port));
  EXPECT_EQ(text_of<SystemError>([&] { mpi::listen_at(mpi::resolve(name)); }),
            "cannot listen at " + name + ": Address already in use");
}

TEST(NamedEndpoint, AnAddressOfAnotherMachineIsNamed) {
  // 192.0.2.0/24 is nobody's (RFC 5737).
  EXPECT_EQ(text_of<SystemError>([] { mpi::listen_at(mpi::resolve("192.0.2.1:6170")); }),
            "cannot listen at 192.0.2.1:6170, which is no address of this machine: Cannot assign "
            "requested address");
}

}  // namespace
}  // namespace tutti::ps
