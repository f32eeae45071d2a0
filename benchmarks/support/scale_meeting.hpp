// What hosts send to each other until they have met.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/batch.hpp"
#include "comm/failures/heartbeats.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/wire.hpp"

namespace tutti::bench {

/** As the leaders do to connect the hosts: each sends `bytes` bytes to those it has connections to.
 */
inline void exchange_with_connected(const HostGroup& group, std::size_t bytes) {
  const std::vector<int> hosts = connected_hosts(group.position(), group.size());
  const std::vector<std::byte> own(bytes);
  std::vector<std::byte> others(bytes * hosts.size());
  Batch batch(group.wire(), Wire::Traffic::point_to_point);
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    const int peer = group.member(hosts[i]);
    batch.recv(others.data() + i * bytes, std::ssize(own), peer);
    batch.send(own.data(), std::ssize(own), peer);
  }
  batch.wait();
}

/** The leaders' connections, but for TCP's own messages: endpoints, and then what came of it. */
inline void connect_leaders(const HostGroup& group) {
  constexpr std::size_t kEndpoint = 192;  // bytes, at most
  exchange_with_connected(group, kEndpoint);
  exchange_with_connected(group, 1);
}

/** As mpi::Session::hosts(): what a host's ranks send to those of another one. */
inline void tell_places(const HostGroup& group, int ranks) {
  constexpr std::size_t kPlace = 24;  // bytes: a rank's host, and its process
  const int all = group.size() * ranks;
  std::vector<std::byte> places(kPlace * static_cast<std::size_t>(all));  // in which nobody looks
  const auto peer = [&, size = group.size()](int distance) {
    return group.member((group.position() + distance + size) % size);
  };
  for (int known = 1; known < all; known *= 2) {
    const int distance = std::max(known / ranks, 1);
    const auto bytes = static_cast<std::int64_t>(kPlace) * std::min(known, all - known);
    Batch batch(group.wire(), Wire::Traffic::point_to_point);
    for (int rank = 0; rank < std::min(known, ranks); ++rank) {
      batch.recv(places.data(), bytes, peer(distance));
      batch.send(places.data(), bytes, peer(-distance));
    }
    batch.wait();
  }
}

}  // namespace tutti::bench
