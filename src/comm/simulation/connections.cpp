// Messages of leaders' collectives over connections with little room, as mpi::Streams has them:
// they are received in the order in which they were sent, of whatever kind, and wait while the
// other end has too much that nobody has received.
#include <utility>

#include "comm/simulation/wire.hpp"

namespace tutti::simulation {

void SimulatedWire::make_connections() {
  const Cluster& cluster = process_.cluster();
  const Layout& layout = cluster.layout();
  if (cluster.room() == 0 || layout.local_rank_of(rank()) != 0) return;
  for (const int host : connected_hosts(process_.host(), layout.host_count())) {
    const int leader = layout.ranks_of(host).front();
    connections_.try_emplace({leader, column_of(Traffic::collective)});
    if (has_ahead(layout.host_count())) {
      connections_.try_emplace({leader, column_of(Traffic::ahead)});
    }
  }
}

SimulatedWire::Connection* SimulatedWire::connection_to(int peer, Traffic traffic) {
  if (side_of(traffic) != Side::collective || traffic == Traffic::question) return nullptr;
  const auto found = connections_.find({peer, column_of(traffic)});
  return found == connections_.end() ? nullptr : &found->second;
}

// Messages move in calls of their ends alone.

void SimulatedWire::push(Connection& connection) {
  while (!connection.waiting.empty()) {
    const std::shared_ptr<Parcel> parcel = connection.waiting.front();
    const std::int64_t more = connection.under_way + parcel->bytes;
    if (connection.under_way > 0 && more > process_.cluster().room()) return;
    connection.waiting.pop_front();
    connection.under_way = more;
    transmit(parcel);
  }
}

void SimulatedWire::push_all() {
  for (auto& [key, connection] : connections_) push(connection);
}

void SimulatedWire::pull(Connection& connection) {
  while (!connection.come.empty() && !connection.wanted.empty() &&
         connection.come.front()->traffic == connection.wanted.front().traffic) {
    make_room(*connection.come.front());
    unload(*connection.come.front(), connection.wanted.front().receive);
    connection.come.pop_front();
    connection.wanted.pop_front();
  }
}

std::optional<int> SimulatedWire::take_from(Connection& connection, std::byte* data,
                                            std::int64_t bytes, Traffic traffic) {
  if (connection.come.empty() || connection.come.front()->traffic != traffic) return std::nullopt;
  const std::shared_ptr<Parcel> parcel = std::move(connection.come.front());
  connection.come.pop_front();
  make_room(*parcel);
  const int sender = copy_out(*parcel, data, bytes);
  pull(connection);
  return sender;
}

void SimulatedWire::make_room(const Parcel& parcel) {
  Cluster& cluster = process_.cluster();
  const auto heard = cluster.scheduler().now() + cluster.network().model().latency;
  cluster.scheduler().at(heard, [&cluster, context = context_, from = parcel.source, to = rank(),
                                 traffic = parcel.traffic, bytes = parcel.bytes] {
    Process& sender = cluster.process(from);
    const auto wire = sender.wires_.find(context);
    if (wire == sender.wires_.end()) return;
    wire->second->connection_to(to, traffic)->under_way -= bytes;
    sender.wake(cluster.tick());
  });
}

}  // namespace tutti::simulation
