// Says which ranks of a communicator, or of a list, are workers and servers.
#include "ps/placement.hpp"

#include <array>
#include <utility>

#include "base/refuse.hpp"
#include "ps/endpoint_placement.hpp"

namespace tutti::ps {
namespace {

Name worker_name(int rank, std::size_t index) { return {rank, "worker " + std::to_string(index)}; }
Name server_name(int rank, std::size_t index) { return {rank, "server " + std::to_string(index)}; }

/** Of the ranks of a communicator, those for which `serves` are servers. */
std::unique_ptr<Placement::Impl> split_ranks(Communicator& world, const std::vector<bool>& serves) {
  auto impl = std::make_unique<Placement::Impl>();
  impl->world = &world;
  for (std::size_t i = 0; i < serves.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (serves[i]) {
      if (rank == world.global_rank()) impl->server = static_cast<int>(impl->servers.size());
      impl->servers.push_back(server_name(rank, impl->servers.size()));
    } else {
      if (rank == world.global_rank()) impl->worker = static_cast<int>(impl->workers.size());
      impl->workers.push_back(worker_name(rank, impl->workers.size()));
    }
  }
  return impl;
}

std::unique_ptr<Placement::Impl> place_by_arguments(std::string_view endpoints, int index,
                                                    int workers, bool serves) {
  return place_by_endpoints({.list_name = "endpoints",
                             .list = std::string(endpoints),
                             .workers_name = "workers",
                             .workers = workers,
                             .index_name = "index",
                             .index = index,
                             .serves = serves});
}

}  // namespace

void Placement::Impl::number_ranks(int worker_count, int server_count) {
  for (int i = 0; i < worker_count; ++i) workers.push_back(worker_name(i, workers.size()));
  for (int i = 0; i < server_count; ++i) {
    servers.push_back(server_name(worker_count + i, servers.size()));
  }
}

Placement::Placement(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Placement::Placement(Placement&&) noexcept = default;
Placement& Placement::operator=(Placement&&) noexcept = default;
Placement::~Placement() = default;

Placement Placement::last_ranks(Communicator& world, int servers) {
  if (world.world_size() == 1) {
    refuse("servers is ", servers,
           ", but of 1 rank none is left for servers: a worker that is alone "
           "has its server in a thread (servers=\"thread\")");
  }
  if (servers < 1 || servers >= world.world_size()) {
    refuse("servers is ", servers, ", but must be from 1 to ", world.world_size() - 1, ": of ",
           world.world_size(), " ranks at least one is a worker");
  }
  std::vector<bool> serves(static_cast<std::size_t>(world.world_size()));
  std::fill(serves.end() - servers, serves.end(), true);
  return Placement(split_ranks(world, serves));
}

Placement Placement::one_per_host(Communicator& world) {
  const std::array<std::int32_t, 2> own{world.local_rank(), world.local_size()};
  std::vector<std::array<std::int32_t, 2>> all(static_cast<std::size_t>(world.world_size()));
  world.all_gather(ConstView(own.data(), 2, DType::i32),
                   View(all.data(), 2 * std::ssize(all), DType::i32));
  std::vector<bool> serves;
  for (const auto& [rank_of_host, ranks_of_host] : all) {
    if (ranks_of_host == 1) {
      refuse("rank ", serves.size(),
             " is alone on its host, but there must be a worker beside the "
             "server of each host");
    }
    serves.push_back(rank_of_host == ranks_of_host - 1);
  }
  return Placement(split_ranks(world, serves));
}

Placement Placement::threads(Communicator& world) {
  auto impl = std::make_unique<Impl>();
  impl->world = &world;
  impl->worker = impl->server = world.global_rank();
  impl->serves_in_a_thread = true;
  for (int rank = 0; rank < world.world_size(); ++rank) {
    impl->workers.push_back(worker_name(rank, impl->workers.size()));
    impl->servers.push_back(server_name(rank, impl->servers.size()));
  }
  return Placement(std::move(impl));
}

Placement Placement::server(std::string_view endpoints, int index, int workers) {
  return Placement(place_by_arguments(endpoints, index, workers, true));
}

Placement Placement::worker(std::string_view endpoints, int index, int workers) {
  return Placement(place_by_arguments(endpoints, index, workers, false));
}

bool Placement::is_worker() const { return impl_->worker >= 0; }
bool Placement::is_server() const { return impl_->server >= 0; }
int Placement::worker_index() const { return impl_->worker; }
int Placement::server_index() const { return impl_->server; }
int Placement::workers() const { return static_cast<int>(impl_->workers.size()); }
int Placement::servers() const { return static_cast<int>(impl_->servers.size()); }
Communicator* Placement::world() const { return impl_->world; }
const std::vector<std::string>& Placement::server_endpoints() const { return impl_->endpoints; }

}  // namespace tutti::ps
