// The lines of a host, which its leader connects: how its other ranks come to hold them.
#include "comm/mpi/host_lines.hpp"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/batch.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/sockets/tcp_connection.hpp"

namespace tutti::mpi {
namespace {

constexpr std::chrono::milliseconds kForRoom{1000};
constexpr std::chrono::milliseconds kToTake{1000};  // lent sockets
constexpr WaitPolicy kWhileBorrowing{.nap = std::chrono::microseconds(200)};

/** What the leader knows in the end of the connections between hosts. Plain bytes. */
struct Kept {
  std::uint64_t lines = 0;  ///< a bit for each that was lent, in ascending order of the hosts
  LeadersConnections leaders{};
};

/** What the leader has to say: where it lends sockets, and what came of it. */
template <class T>
void tell_neighbours(Channel& channel, std::span<const int> neighbours, const T& what) {
  const auto told = std::make_shared<T>(what);
  Batch batch(channel, Wire::Traffic::point_to_point);
  batch.keep(told);
  for (const int neighbour : neighbours) batch.send(told.get(), sizeof *told, neighbour);
  batch.wait();
}

/** The same on their side. */
template <class T>
T hear_of_leader(Channel& channel, int leader) {
  const auto told = std::make_shared<T>();
  Batch batch(channel, Wire::Traffic::point_to_point);
  batch.keep(told);
  batch.recv(told.get(), sizeof *told, leader);
  batch.wait();
  return *told;
}

/** Of the lines to `lent` hosts, those that both ends keep. */
std::uint64_t kept_lines(const std::vector<Peer>& peers, std::span<const std::int32_t> lent) {
  std::uint64_t kept = 0;
  for (std::size_t i = 0; i < lent.size(); ++i) {
    const bool holds = std::any_of(peers.begin(), peers.end(), [&](const Peer& peer) {
      return peer.line == Line::hosts && peer.host == lent[i] && peer.socket;
    });
    if (holds) kept |= std::uint64_t{1} << i;
  }
  return kept;
}

}  // namespace

void offer_lines(Channel& channel, std::span<const int> neighbours, const SocketLender& lender) {
  tell_neighbours(channel, neighbours, lender.address());
}

std::vector<std::int32_t> lend_lines(const Channel& channel, std::vector<Peer>& peers,
                                     const SocketLender& lender) {
  std::vector<int> lent;
  std::vector<std::int32_t> hosts;
  for (const Peer& peer : peers) {
    if (peer.line != Line::hosts || !peer.socket) continue;
    lent.push_back(peer.socket.get());
    hosts.push_back(peer.host);
  }
  const std::chrono::milliseconds share = channel.timeout() / 8;  // of what others wait
  int error = lender.lend(lent, hosts, std::min(kForRoom, share));
  if (error == 0 && !lent.empty()) error = lender.taken(std::min(kToTake, share));
  if (error == 0) return hosts;
  if (!lent.empty()) {
    log(LogLevel::warn, "rank " + std::to_string(channel.rank()) +
                            " could not share connections with the other ranks of its host (" +
                            error_text(error) +
                            "): only the deadline will show other hosts if one of these is gone");
  }
  for (Peer& peer : peers) {
    if (peer.line == Line::hosts) peer.socket = {};
  }
  return hosts;
}

void tell_kept(Channel& channel, std::span<const int> neighbours, const std::vector<Peer>& peers,
               std::span<const std::int32_t> lent, const LeadersConnections& leaders) {
  tell_neighbours(channel, neighbours, Kept{kept_lines(peers, lent), leaders});
}

HostConnections borrow_lines(Channel& channel, const Layout& layout) {
  const int host = layout.host_of(channel.rank());
  const int leader = layout.ranks_of(host).front();
  SocketBorrower borrower(hear_of_leader<LocalAddress>(channel, leader));
  std::optional<std::vector<LentSocket>> sockets;
  Waiter waiter(kWhileBorrowing, channel.timeout());
  while (!waiter.expired()) {
    sockets = borrower.step();
    if (sockets) break;
    channel.look_around(std::span(&leader, 1));
    waiter.pause();
  }
  const Kept kept = hear_of_leader<Kept>(channel, leader);
  HostConnections connections;
  connections.leaders = kept.leaders;
  std::vector<Heartbeats::Line> lines;
  for (std::size_t i = 0; sockets && i < sockets->size(); ++i) {
    if ((kept.lines >> i & 1U) == 0) continue;  // the other end, or this one, gave it up
    LentSocket& one = (*sockets)[i];
    const auto socket = std::make_shared<const Socket>(std::move(one.socket));
    lines.push_back({one.number, std::make_unique<TcpLine>(socket, TcpLine::Reader::none)});
    connections.reached.push_back(one.number);
  }
  connections.heartbeats = std::make_unique<Heartbeats>(
      layout, host, std::vector<Heartbeats::Connection>(), std::move(lines));
  return connections;
}

}  // namespace tutti::mpi
