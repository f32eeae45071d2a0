// Messages of collectives, of leaders and in lanes, over connections with little room, as
// mpi::Streams has them:
// they are received in the order in which they were sent, of whatever kind, and move in parts, as
// much as there is room for at the other end, which has what nobody has received.
#include <algorithm>
#include <utility>

#include "comm/simulation/wire.hpp"

namespace tutti::simulation {
namespace {

/** Bytes a second of a wire that is fast, as mpi::WireSpeed finds. */
constexpr double kFast = 1.3e9;

}  // namespace

void SimulatedWire::make_connections() {
  const Cluster& cluster = process_.cluster();
  const Layout& layout = cluster.layout();
  if (cluster.room() == 0) return;
  if (layout.local_rank_of(rank()) != 0) {
    if (!has_lanes(layout)) return;
    for (const int peer : layout.lane_of(rank())) {
      if (peer != rank()) connections_.try_emplace({peer, column_of(Traffic::collective)});
    }
    return;
  }
  for (const int host : connected_hosts(process_.host(), layout.host_count())) {
    const int leader = layout.ranks_of(host).front();
    connections_.try_emplace({leader, column_of(Traffic::collective)});
    if (has_ahead(layout.host_count())) {
      connections_.try_emplace({leader, column_of(Traffic::ahead)});
    }
  }
}

bool SimulatedWire::goes_by_connection(Traffic traffic) {
  return side_of(traffic) == Side::collective && traffic != Traffic::question;
}

bool SimulatedWire::has_connection(int peer, Traffic traffic) const {
  return goes_by_connection(traffic) && connections_.contains({peer, column_of(traffic)});
}

SimulatedWire::Connection* SimulatedWire::connection_to(int peer, Traffic traffic) {
  if (!goes_by_connection(traffic)) return nullptr;
  const auto found = connections_.find({peer, column_of(traffic)});
  return found == connections_.end() ? nullptr : &found->second;
}

// Messages move in calls of their ends alone.

void SimulatedWire::push(Connection& connection) {
  while (!connection.waiting.empty()) {
    const std::shared_ptr<Parcel> message = connection.waiting.front();
    const std::int64_t there = message->bytes - message->missing;
    if (there == 0 && message->missing > 0) return;
    const std::int64_t least = std::min(there, kShort);
    std::int64_t room = process_.cluster().room() - connection.under_way;
    if (connection.under_way == 0) room = std::max(room, least);
    if (room < least) return;
    const std::int64_t bytes = std::min(there, room);
    connection.under_way += bytes;
    if (bytes == message->bytes) {
      connection.waiting.pop_front();
      transmit(message);
      continue;
    }
    const auto part = std::make_shared<Parcel>(*message);
    part->bytes = bytes;
    part->behind = message->bytes - bytes;
    message->data += bytes;
    message->bytes -= bytes;
    message->before += bytes;
    transmit(part);
  }
}

void SimulatedWire::pull(Connection& connection) {
  while (!connection.come.empty() && !connection.wanted.empty() &&
         connection.come.front()->traffic == connection.wanted.front().traffic) {
    const Wanted& wanted = connection.wanted.front();
    const bool goes_on = connection.come.front()->before > 0;
    if (goes_on != operation(wanted.receive).begun) return;  // of one that was too long
    const Parcel* const passed = operation(wanted.receive).passed.get();
    if (passed != nullptr && passed->bytes - passed->missing >= process_.cluster().room()) return;
    const std::shared_ptr<Parcel> parcel = std::move(connection.come.front());
    connection.come.pop_front();
    make_room(*parcel);
    if (unload(*parcel, wanted.receive)) connection.wanted.pop_front();
  }
}

void SimulatedWire::move_all() {
  for (auto& [key, connection] : connections_) {
    push(connection);
    pull(connection);
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

bool SimulatedWire::has_read(int source, Traffic traffic) {
  const Connection* const connection = connection_to(source, traffic);
  return connection != nullptr && !connection->come.empty() &&
         connection->come.front()->traffic == traffic;
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

bool SimulatedWire::is_fast() const {
  const Cluster& cluster = process_.cluster();
  const int hosts = cluster.layout().host_count();
  return cluster.room() > 0 && hosts > 2 && hosts <= kMostWithoutAhead &&
         cluster.network().model().bytes_per_second >= kFast;
}

bool SimulatedWire::passes_on(std::span<const int> ranks) const {
  const Layout& layout = process_.cluster().layout();
  return process_.cluster().room() > 0 && std::all_of(ranks.begin(), ranks.end(), [&](int rank) {
           return layout.local_rank_of(rank) == 0;
         });
}

Wire::Passed SimulatedWire::post_passed(std::byte* data, std::int64_t bytes, int source,
                                        int destination, Traffic traffic) {
  const auto parcel = new_parcel(data, bytes, destination, traffic);
  parcel->missing = bytes;
  connection_to(destination, traffic)->waiting.push_back(parcel);
  const Posted receive = new_operation(data, bytes);
  operation(receive).passed = parcel;
  post_receive(receive, source, traffic);
  return {receive, parcel->send};
}

}  // namespace tutti::simulation
