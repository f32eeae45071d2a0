// How ranks of different hosts connect: they exchange addresses, then TCP, then what both have.
#include "comm/mpi/connect_hosts.hpp"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/host_lines.hpp"
#include "comm/mpi/meeting/endpoint.hpp"
#include "comm/mpi/meeting/interface.hpp"
#include "comm/mpi/meeting/meeting.hpp"
#include "comm/mpi/meeting/wire_speed.hpp"
#include "comm/mpi/session.hpp"
#include "comm/mpi/sockets/lent_sockets.hpp"
#include "comm/mpi/sockets/tcp_connection.hpp"
#include "comm/mpi/words.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

/** The longest time to connect; a quarter of a deadline, if that is less: it counts towards it. */
constexpr std::chrono::milliseconds kToConnect{2000};
constexpr WaitPolicy kPolicy{.nap = std::chrono::microseconds(200)};
/** A message ends when the kernel has all of it. Over a slow wire that is not to be much sooner
 * than it leaves: whoever waits for an answer then has a deadline. What has left, and is not
 * acknowledged yet, comes on top: as much as the kernel thinks that the wire can hold. */
constexpr int kLimitOfUnsent = 256 << 10;

/** Whether hosts that are so many look how fast their wire is: what they do depends on it. */
constexpr bool have_test(int hosts) { return hosts > 2 && hosts <= Wire::kMostWithoutAhead; }

std::vector<Peer> peers_of(const Layout& layout, int own, bool with_test) {
  std::vector<Peer> peers;
  for (const int host : connected_hosts(own, layout.host_count())) {
    const int leader = layout.ranks_of(host).front();
    const auto quiet = sign_of_life_after(own, host, layout.host_count());
    peers.push_back({host, Line::leaders, leader, quiet});
    if (layout.ranks_of(host).size() + layout.ranks_of(own).size() > 2) {
      peers.push_back({host, Line::hosts, leader, quiet});
    }
    peers.push_back({host, Line::collective, leader});
    if (Wire::has_ahead(layout.host_count())) peers.push_back({host, Line::ahead, leader});
    if (with_test && are_neighbours(own, host, layout.host_count())) {
      peers.push_back({host, Line::test, leader});
    }
  }
  return peers;
}

/** Whether either can tell the other an address. */
bool have_addresses(const Endpoint& one, const Endpoint& other) {
  return !addresses_of(one, other.network).empty() && !addresses_of(other, one.network).empty();
}

/** Where a process listens; the port is 0 if it cannot. */
struct Here {
  Socket listener;
  Endpoint endpoint;
};

Here listen_here() {
  Here here;
  try {
    std::uint16_t port = 0;
    here.listener = listen_anywhere(port);
    here.endpoint = Endpoint::at(port);
  } catch (const SystemError& error) {  // the others still wait for the endpoint
    log(LogLevel::warn, std::string("no connections between hosts: ") + error.what());
  }
  return here;
}

/** Connects, until also those `have_come` who are waited for meanwhile; how long that took. */
std::chrono::milliseconds meet(Channel& channel, std::vector<Peer>& peers, const Here& here,
                               int own_host, const std::function<bool()>& have_come) {
  std::vector<Connector> connectors;
  connectors.reserve(peers.size());
  for (Peer& peer : peers) {
    if (peer.wanted && peer.host > own_host) connectors.emplace_back(peer, here.endpoint, own_host);
  }
  Acceptor acceptor(peers, here.endpoint, here.listener);
  const auto most = std::min(kToConnect, channel.timeout() / 4);
  Waiter waiter(kPolicy, most);
  bool connected = false;
  while (!waiter.expired()) {
    acceptor.step();
    for (Connector& connector : connectors) connector.step();
    const bool all_have_come = have_come();
    connected = std::all_of(peers.begin(), peers.end(),
                            [](const Peer& peer) { return bool(peer.socket) || !peer.wanted; });
    if (connected && all_have_come) break;
    channel.look_around({});
    waiter.pause();
  }
  if (!connected && acceptor.error() != 0) {
    log(LogLevel::warn, "rank " + std::to_string(channel.rank()) +
                            " could not let other hosts connect: " + error_text(acceptor.error()));
  }
  return std::min(waiter.waited(), most);
}

/** Why there is no connection to `peer`, as far as this process knows. */
std::string why_unconnected(const Peer& peer, const Endpoint& own) {
  if (!peer.wanted) return "one of the two has no IPv4 address";
  if (peer.error != 0) return error_text(peer.error);
  std::string text;
  for (const Address address : addresses_of(peer.endpoint, own.network)) {
    text += dotted(address) + " ";
  }
  text += "port " + std::to_string(peer.endpoint.port);
  return text + (peer.has_heard ? " does not answer" : ": a firewall?");
}

int session_rank(const Channel& channel, const Peer& peer) {
  return channel.members()[static_cast<std::size_t>(peer.rank)];
}

using Unconnected = std::vector<const Peer*>;

/** Those of the peers without a connection that are `meant`. One of the two says it. */
template <class Meant>
Unconnected unconnected(const std::vector<Peer>& peers, const Channel& channel,
                        const Meant& meant) {
  Unconnected those;
  for (const Peer& peer : peers) {
    if (!peer.socket && peer.rank > channel.rank() && meant(peer)) those.push_back(&peer);
  }
  return those;
}

/** "rank 2 (why), rank 5 (why)". */
template <class Why>
std::string list(const Unconnected& peers, const Why& why) {
  std::string text;
  for (const Peer* const peer : peers) {
    text +=
        (text.empty() ? "rank " : ", rank ") + std::to_string(peer->rank) + " (" + why(*peer) + ")";
  }
  return text;
}

/** Says whom this process cannot connect to, and what that means. Nobody is to wait again for who
 * could not be called for as long as this process tries. */
void note_unconnected(const Unconnected& peers, const Channel& channel, const Endpoint& own,
                      std::chrono::milliseconds spent, const std::string& consequence) {
  if (peers.empty()) return;
  log(LogLevel::warn,
      "rank " + std::to_string(channel.rank()) + " cannot connect to " +
          list(peers, [&](const Peer& peer) { return why_unconnected(peer, own); }) + ". " +
          consequence);
  const bool was_tried = spent >= kToConnect;  // for longer than a lost packet takes
  for (const Peer* const peer : peers) {
    if ((was_tried || !peer->wanted) && peer->error == 0 && !peer->has_heard) {
      channel.session()->note_out_of_reach(session_rank(channel, *peer));
    }
  }
}

/** With whom MPI carries what streams would, and why. */
void log_without_streams(const std::vector<Peer>& peers, const Channel& channel) {
  const auto those =
      unconnected(peers, channel, [](const Peer& peer) { return peer.line == Line::collective; });
  if (those.empty()) return;
  const char* const own_reason = reason_for_mpi();
  const auto why = [own_reason](const Peer& peer) {
    if (own_reason != nullptr) return own_reason;
    return peer.wanted ? "they have no connection"
                       : "MPI is to carry them there, or the hosts have no connections";
  };
  log(LogLevel::info, "rank " + std::to_string(channel.rank()) +
                          ": messages of collectives go over MPI to " + list(those, why));
}

std::shared_ptr<const Socket> shared(Socket& socket) {
  return socket ? std::make_shared<const Socket>(std::move(socket)) : nullptr;
}

std::unique_ptr<Heartbeats> heartbeats_of(std::vector<Peer>& peers, const Layout& layout,
                                          int own_host) {
  std::vector<Heartbeats::Connection> connections;
  std::vector<Heartbeats::Line> lines;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (peers[i].line != Line::leaders || !peers[i].socket) continue;
    const int host = peers[i].host;
    const auto of_leaders = shared(peers[i].socket);
    const bool has_both = i + 1 < peers.size() && peers[i + 1].line == Line::hosts;
    const auto of_hosts = has_both ? shared(peers[i + 1].socket) : nullptr;
    connections.push_back({host, std::make_unique<TcpConnection>(of_leaders, of_hosts)});
    const auto reader = of_hosts ? TcpLine::Reader::none : TcpLine::Reader::connection;
    lines.push_back({host, std::make_unique<TcpLine>(of_hosts ? of_hosts : of_leaders, reader)});
  }
  return std::make_unique<Heartbeats>(layout, own_host, std::move(connections), std::move(lines));
}

/** The hosts behind this one come first, as in HostGroup::in_turns(): if all began with the first
 * host, its link would keep all of them waiting, and the last one's would stand idle. */
std::unique_ptr<Streams> streams_of(std::vector<Peer>& peers, int own_host) {
  std::vector<Peer*> ends;
  for (Peer& peer : peers) {
    if (is_stream(peer.line) && peer.socket) ends.push_back(&peer);
  }
  std::stable_partition(ends.begin(), ends.end(),
                        [&](const Peer* peer) { return peer->host > own_host; });
  std::vector<Streams::Connection> connections;
  for (Peer* const peer : ends) {
    const auto traffic =
        peer->line == Line::ahead ? Wire::Traffic::ahead : Wire::Traffic::collective;
    const std::int64_t most = Streams::most_at_once(peer->socket);
    connections.push_back({peer->rank, traffic, std::move(peer->socket), most});
  }
  if (connections.empty()) return nullptr;
  return std::make_unique<Streams>(std::move(connections));
}

/** What all leaders find in common, if each knows all others. */
LeadersConnections compare_connections(const Words& words, std::vector<Peer>& peers, bool is_fast,
                                       std::chrono::milliseconds timeout) {
  const bool all = std::all_of(peers.begin(), peers.end(), [](const Peer& peer) {
    return peer.line != Line::collective || peer.socket;
  });
  LeadersConnections common{all, all && is_fast};
  const std::vector<LeadersConnections> own(peers.size(), common);
  words.exchange(peers, own, timeout, [&](const Peer& /*peer*/, const LeadersConnections& others) {
    common.all_have_streams = common.all_have_streams && others.all_have_streams;
    common.are_fast = common.are_fast && others.are_fast;
  });
  return common;
}

/** Offers connections to those peers that are `wanted`, and makes those that both ends want ready
 * for what they carry; how long they took to connect. See meet(). */
std::chrono::milliseconds connect(const Words& words, std::vector<Peer>& peers, const Here& here,
                                  int own_host, const std::function<bool()>& have_come) {
  Channel& channel = words.channel();
  std::vector<Endpoint> offers(peers.size(), here.endpoint);
  const bool mpi_carries = reason_for_mpi() != nullptr;
  for (std::size_t i = 0; i < peers.size(); ++i) {
    const Line line = peers[i].line;
    const bool goes_by_mpi = mpi_carries && (is_stream(line) || line == Line::test);
    const bool in_reach =
        peers[i].wanted && !channel.session()->is_out_of_reach(session_rank(channel, peers[i]));
    if (goes_by_mpi || !in_reach) offers[i].port = 0;
    peers[i].wanted = offers[i].port != 0;
  }
  words.exchange(peers, offers, channel.timeout(), [&](Peer& peer, const Endpoint& endpoint) {
    peer.endpoint = endpoint;
    peer.wanted = peer.wanted && have_addresses(endpoint, here.endpoint);
  });
  const auto spent = meet(channel, peers, here, own_host, have_come);
  for (Peer& peer : peers) {
    if (!peer.socket) continue;
    const bool is_ready = is_stream(peer.line)
                              ? send_at_once(peer.socket) && keep_open(peer.socket) &&
                                    limit_unsent(peer.socket, kLimitOfUnsent)
                              : keep_alive(peer.socket, peer.quiet);
    if (!is_ready) peer.socket = {};
  }
  return spent;
}

/** Who has a connection must not take the other, who gave up, for dead. */
void keep_what_both_have(const Words& words, std::vector<Peer>& peers,
                         std::chrono::milliseconds timeout) {
  std::vector<std::uint8_t> have;
  for (const Peer& peer : peers) have.push_back(peer.socket ? 1 : 0);
  words.exchange(peers, have, timeout, [](Peer& peer, std::uint8_t other_has) {
    if (other_has == 0) peer.socket = {};
  });
}

/** The part of a leader. */
HostConnections connect_leaders(Channel& channel, const Layout& layout, Whole* whole) {
  const int own_host = layout.host_of(channel.rank());
  const std::span<const int> neighbours = layout.ranks_of(own_host).subspan(1);
  SocketLender lender(neighbours.size());
  offer_lines(channel, neighbours, lender);
  const int hosts = layout.host_count();
  // A part takes the wire to be like those that the whole has tested.
  const std::optional<bool> known = whole == nullptr ? std::nullopt : whole->has_fast_wire();
  std::vector<Peer> peers = peers_of(layout, own_host, have_test(hosts) && !known);
  const Here here = listen_here();
  const Words words(channel, whole);
  const auto spent = connect(words, peers, here, own_host, [&lender] {
    lender.step();
    return lender.all_have_come();
  });
  const std::vector<std::int32_t> lent = lend_lines(channel, peers, lender);
  keep_what_both_have(words, peers, channel.timeout() - spent);
  LeadersConnections common{};
  if (hosts <= Wire::kMostWithoutAhead) {
    const bool is_fast = have_test(hosts) && (known ? *known : test_wire(peers, own_host, hosts));
    common = compare_connections(words, peers, is_fast, channel.timeout() - spent);
  }
  tell_kept(channel, neighbours, peers, lent, common);
  const auto without = unconnected(peers, channel, [&](const Peer& peer) {
    const bool listen = here.endpoint.port != 0 && peer.endpoint.port != 0;  // or it has been said
    return peer.line == Line::leaders && listen &&
           !channel.session()->is_out_of_reach(session_rank(channel, peer));
  });
  note_unconnected(
      without, channel, here.endpoint, spent,
      "Only the deadline of " + seconds_text(channel.timeout()) + " will show if a host is gone");
  log_without_streams(peers, channel);
  return {heartbeats_of(peers, layout, own_host), streams_of(peers, own_host), common};
}

}  // namespace

HostConnections connect_hosts(Channel& channel, const Layout& layout, Whole* whole) {
  return layout.local_rank_of(channel.rank()) == 0 ? connect_leaders(channel, layout, whole)
                                                   : borrow_lines(channel, layout);
}

std::unique_ptr<Streams> connect_lane(Channel& channel, const Layout& layout,
                                      std::span<const int> reached, Whole* whole) {
  const int own_host = layout.host_of(channel.rank());
  std::vector<Peer> peers;
  for (const int rank : layout.lane_of(channel.rank())) {
    if (rank == channel.rank()) continue;
    peers.push_back({layout.host_of(rank), Line::collective, rank});
    peers.back().wanted =
        std::find(reached.begin(), reached.end(), layout.host_of(rank)) != reached.end();
  }
  const Here here = listen_here();
  const Words words(channel, whole);
  const auto spent = connect(words, peers, here, own_host, [] { return true; });
  keep_what_both_have(words, peers, channel.timeout() - spent);
  const auto without = unconnected(peers, channel, [](const Peer& peer) { return peer.wanted; });
  note_unconnected(without, channel, here.endpoint, spent,
                   "MPI carries what collectives move between them");
  return streams_of(peers, own_host);
}

}  // namespace tutti::mpi
