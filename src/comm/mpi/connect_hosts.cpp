// How the leaders of the hosts connect: addresses over MPI, then TCP, then what both have.
#include "comm/mpi/connect_hosts.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "base/deadline.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/batch.hpp"
#include "comm/mpi/channel.hpp"
#include "comm/mpi/endpoint.hpp"
#include "comm/mpi/interface.hpp"
#include "comm/mpi/lent_sockets.hpp"
#include "comm/mpi/tcp_connection.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

/** The longest time to connect; a quarter of a deadline, if that is less: it counts towards it. */
constexpr std::chrono::milliseconds kToConnect{2000};
constexpr std::chrono::milliseconds kForAWelcome{500};
constexpr WaitPolicy kPolicy{.nap = std::chrono::microseconds(200)};
/** A message ends when the kernel has all of it. Over a slow wire that is not to be much sooner
 * than it leaves: whoever waits for an answer then has a deadline. What has left, and is not
 * acknowledged yet, comes on top: as much as the kernel thinks that the wire can hold. */
constexpr int kLimitOfUnsent = 256 << 10;
constexpr std::size_t kMostStrangers = 64;  // connections that have not said who they are

/** Between two hosts there is a connection of their leaders, and one that all ranks hold; besides,
 * one or two for messages of the leaders: see Wire::has_ahead(). */
enum class Line : std::int32_t { leaders, hosts, collective, ahead };
constexpr bool is_stream(Line line) { return line == Line::collective || line == Line::ahead; }

/** Who connects says, as the first thing: whom it wants, by the endpoint's token, and who it is. */
struct Hello {
  Token token;
  std::int32_t host = -1;
  Line line = Line::leaders;
};

struct Peer {
  int host = 0;
  Line line = Line::leaders;
  int leader = 0;
  Endpoint endpoint;
  Socket socket;       ///< once each has shown the other who it is
  bool wanted = true;  ///< by both
};

std::vector<Peer> peers_of(const Layout& layout, int own) {
  std::vector<Peer> peers;
  for (const int host : connected_hosts(own, layout.host_count())) {
    const int leader = layout.ranks_of(host).front();
    peers.push_back({host, Line::leaders, leader, {}, {}});
    if (layout.ranks_of(host).size() + layout.ranks_of(own).size() > 2) {
      peers.push_back({host, Line::hosts, leader, {}, {}});
    }
    peers.push_back({host, Line::collective, leader, {}, {}});
    if (Wire::has_ahead(layout.host_count())) peers.push_back({host, Line::ahead, leader, {}, {}});
  }
  return peers;
}

/** Where to connect to who gave `endpoint`; nowhere if one of the two has no sockets. */
std::vector<Address> reachable(const Endpoint& endpoint, const Endpoint& own) {
  return own.port == 0 ? std::vector<Address>() : addresses_of(endpoint, own.network);
}

/** Sends `own` to every peer and fills in what comes from it. */
template <class T, class Put>
void exchange(Channel& channel, std::vector<Peer>& peers, const std::vector<T>& own,
              std::chrono::milliseconds timeout, const Put& put) {
  const auto sent = std::make_shared<std::vector<T>>(own);
  const auto received = std::make_shared<std::vector<T>>(peers.size());
  Batch batch(channel, Wire::Traffic::point_to_point);
  batch.keep(sent);
  batch.keep(received);
  for (std::size_t i = 0; i < peers.size(); ++i) {
    batch.recv(&(*received)[i], sizeof(T), peers[i].leader);
    batch.send(&(*sent)[i], sizeof(T), peers[i].leader);
  }
  batch.wait(timeout);
  for (std::size_t i = 0; i < peers.size(); ++i) put(peers[i], (*received)[i]);
}

/** Connects to one peer: to all of its addresses at once, then says hello on one after the other,
 * for another machine may have one of these addresses too. */
class Connector {
 public:
  Connector(Peer& peer, const Endpoint& own, int own_host)
      : peer_(peer), own_(own), own_host_(own_host) {
    for (const Address address : reachable(peer.endpoint, own)) {
      Socket socket = start_connecting(address, peer.endpoint.port);
      if (socket) attempts_.push_back(std::move(socket));
    }
  }

  void step() {
    if (peer_.socket) return;
    if (!said_hello_) say_hello();
    if (said_hello_) hear_welcome();
  }

 private:
  void say_hello() {
    for (std::size_t i = 0; i < attempts_.size(); ++i) {
      const Connecting state = connecting_state(attempts_[i]);
      if (state == Connecting::under_way) continue;
      std::swap(attempts_[i], attempts_.back());
      const Hello hello{peer_.endpoint.token, own_host_, peer_.line};
      if (state == Connecting::done && send_all(attempts_.back(), bytes_of(hello))) {
        said_hello_.emplace(kForAWelcome);
      } else {
        attempts_.pop_back();
      }
      return;
    }
  }

  void hear_welcome() {
    Token token;
    const Received received = receive_exactly(attempts_.back(), token);
    if (received == Received::too_few && !said_hello_->expired()) return;
    if (received == Received::all && token == own_.token) {
      peer_.socket = std::move(attempts_.back());
      attempts_.clear();  // the other end has room for few
    } else {
      attempts_.pop_back();
    }
    said_hello_.reset();
  }

  Peer& peer_;
  const Endpoint& own_;
  int own_host_;
  std::vector<Socket> attempts_;  // the last one is where hello was said
  std::optional<Deadline> said_hello_;
};

/** Lets peers in, who show that they were given the endpoint. */
class Acceptor {
 public:
  Acceptor(std::vector<Peer>& peers, const Endpoint& own, const Socket& listener)
      : peers_(peers), own_(own), listener_(listener) {}

  void step() {
    while (strangers_.size() < kMostStrangers) {
      Socket stranger = accept_from(listener_);
      if (!stranger) break;
      strangers_.push_back(std::move(stranger));
    }
    std::erase_if(strangers_, [this](Socket& stranger) {
      Hello hello;
      const Received received = receive_exactly(stranger, bytes_of(hello));
      if (received == Received::all && hello.token == own_.token) welcome(stranger, hello);
      return received != Received::too_few;
    });
  }

 private:
  void welcome(Socket& stranger, const Hello& hello) {
    const auto peer = std::find_if(peers_.begin(), peers_.end(), [&hello](const Peer& one) {
      return one.host == hello.host && one.line == hello.line;
    });
    if (peer == peers_.end() || peer->socket) return;
    if (send_all(stranger, peer->endpoint.token)) peer->socket = std::move(stranger);
  }

  std::vector<Peer>& peers_;
  const Endpoint& own_;
  const Socket& listener_;
  std::vector<Socket> strangers_;
};

/** Connects; how long that took. */
std::chrono::milliseconds meet(Channel& channel, std::vector<Peer>& peers, const Endpoint& own,
                               int own_host, const Socket& listener, SocketLender& lender) {
  std::vector<Connector> connectors;
  connectors.reserve(peers.size());
  for (Peer& peer : peers) {
    if (peer.wanted && peer.host > own_host) connectors.emplace_back(peer, own, own_host);
  }
  Acceptor acceptor(peers, own, listener);
  const auto most = std::min(kToConnect, channel.timeout() / 4);
  Waiter waiter(kPolicy, most);
  while (!waiter.expired()) {
    acceptor.step();
    for (Connector& connector : connectors) connector.step();
    lender.step();
    const bool connected = std::all_of(peers.begin(), peers.end(), [](const Peer& peer) {
      return bool(peer.socket) || !peer.wanted;
    });
    if (connected && lender.all_have_come()) break;
    channel.look_around({});
    waiter.pause();
  }
  return std::min(waiter.waited(), most);
}

std::string address_text(Address address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  const char* written = ::inet_ntop(AF_INET, &address, text.data(), text.size());
  return written != nullptr ? written : "?";
}

void log_unconnected(const std::vector<Peer>& peers, const Channel& channel, const Endpoint& own) {
  std::string list;
  for (const Peer& peer : peers) {
    if (peer.line != Line::leaders) continue;
    if (peer.socket || peer.leader < channel.rank()) continue;  // one of the two says it
    list += (list.empty() ? "rank " : ", rank ") + std::to_string(peer.leader) + " (";
    for (const Address address : reachable(peer.endpoint, own)) list += address_text(address) + " ";
    list += "port " + std::to_string(peer.endpoint.port) + ")";
  }
  if (list.empty()) return;
  log(LogLevel::warn, "rank " + std::to_string(channel.rank()) + " cannot connect to " + list +
                          ": a firewall? Only the deadline of " + seconds_text(channel.timeout()) +
                          " will show if a host is gone");
}

/** With whom MPI carries what streams would, and why: one of the two says it. */
void log_without_streams(const std::vector<Peer>& peers, const Channel& channel,
                         const char* own_reason) {
  std::string list;
  for (const Peer& peer : peers) {
    if (peer.line != Line::collective || peer.socket || peer.leader < channel.rank()) continue;
    const char* const other = peer.wanted
                                  ? "they have no connection"
                                  : "MPI is to carry them there, or one of them has no sockets";
    const char* const why = own_reason != nullptr ? own_reason : other;
    list += (list.empty() ? "rank " : ", rank ") + std::to_string(peer.leader) + " (" + why + ")";
  }
  if (list.empty()) return;
  log(LogLevel::info, "rank " + std::to_string(channel.rank()) +
                          ": messages of collectives go over MPI to " + list);
}

/** Where the leader lends sockets. */
void tell_neighbours(Channel& channel, std::span<const int> neighbours, LocalAddress address) {
  const auto told = std::make_shared<LocalAddress>(address);
  Batch batch(channel, Wire::Traffic::point_to_point);
  batch.keep(told);
  for (const int neighbour : neighbours) batch.send(told.get(), sizeof *told, neighbour);
  batch.wait();
}

/** Gives the other ranks of this host copies of what is theirs; closes it unless all have some. */
void lend(const SocketLender& lender, std::vector<Peer>& peers) {
  std::vector<int> lent;
  std::vector<std::int32_t> hosts;
  for (const Peer& peer : peers) {
    if (peer.line != Line::hosts || !peer.socket) continue;
    lent.push_back(peer.socket.get());
    hosts.push_back(peer.host);
  }
  if (lender.lend(lent, hosts)) return;
  for (Peer& peer : peers) {
    if (peer.line == Line::hosts) peer.socket = {};
  }
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

std::unique_ptr<Streams> streams_of(std::vector<Peer>& peers) {
  std::vector<Streams::Connection> connections;
  for (Peer& peer : peers) {
    if (!is_stream(peer.line) || !peer.socket) continue;
    const auto traffic =
        peer.line == Line::ahead ? Wire::Traffic::ahead : Wire::Traffic::collective;
    const std::int64_t most = Streams::most_at_once(peer.socket);
    connections.push_back({peer.leader, traffic, std::move(peer.socket), most});
  }
  if (connections.empty()) return nullptr;
  return std::make_unique<Streams>(std::move(connections));
}

/** The part of a leader. */
HostConnections connect_leaders(Channel& channel, const Layout& layout) {
  const int own_host = layout.host_of(channel.rank());
  const std::span<const int> neighbours = layout.ranks_of(own_host).subspan(1);
  SocketLender lender(neighbours.size());
  tell_neighbours(channel, neighbours, lender.address());
  std::vector<Peer> peers = peers_of(layout, own_host);
  Socket listener;
  Endpoint own;
  try {
    std::uint16_t port = 0;
    listener = listen_anywhere(port);
    own = Endpoint::at(port);
  } catch (const SystemError& error) {  // the others still wait for the endpoint
    log(LogLevel::warn, std::string("no heartbeats between hosts: ") + error.what());
  }
  std::vector<Endpoint> offers(peers.size(), own);
  const char* const reason = reason_for_mpi();
  for (std::size_t i = 0; i < peers.size(); ++i) {
    if (reason != nullptr && is_stream(peers[i].line)) offers[i].port = 0;
    peers[i].wanted = offers[i].port != 0;
  }
  exchange(channel, peers, offers, channel.timeout(), [](Peer& peer, const Endpoint& endpoint) {
    peer.endpoint = endpoint;
    peer.wanted = peer.wanted && endpoint.port != 0;
  });
  const auto spent = meet(channel, peers, own, own_host, listener, lender);

  for (Peer& peer : peers) {
    if (!peer.socket) continue;
    const bool is_ready = is_stream(peer.line)
                              ? send_at_once(peer.socket) && keep_open(peer.socket) &&
                                    limit_unsent(peer.socket, kLimitOfUnsent)
                              : keep_alive(peer.socket);
    if (!is_ready) peer.socket = {};
  }
  lend(lender, peers);

  // Who has it must not take the other, who gave up, for dead.
  std::vector<std::uint8_t> have;
  for (const Peer& peer : peers) have.push_back(peer.socket ? 1 : 0);
  exchange(channel, peers, have, channel.timeout() - spent, [](Peer& peer, std::uint8_t other_has) {
    if (other_has == 0) peer.socket = {};
  });
  log_unconnected(peers, channel, own);
  log_without_streams(peers, channel, reason);
  auto heartbeats = heartbeats_of(peers, layout, own_host);
  return {std::move(heartbeats), streams_of(peers)};
}

/** That of another rank. */
HostConnections borrow_lines(Channel& channel, const Layout& layout) {
  const int host = layout.host_of(channel.rank());
  const int leader = layout.ranks_of(host).front();
  const auto address = std::make_shared<LocalAddress>();
  Batch batch(channel, Wire::Traffic::point_to_point);
  batch.keep(address);
  batch.recv(address.get(), sizeof *address, leader);
  batch.wait();
  SocketBorrower borrower(*address);
  std::vector<Heartbeats::Line> lines;
  Waiter waiter(kPolicy, channel.timeout());
  while (!waiter.expired()) {
    if (auto sockets = borrower.step()) {
      for (LentSocket& one : *sockets) {
        lines.push_back(
            {one.number, std::make_unique<TcpLine>(shared(one.socket), TcpLine::Reader::none)});
      }
      break;
    }
    channel.look_around(std::span(&leader, 1));
    waiter.pause();
  }
  return {std::make_unique<Heartbeats>(layout, host, std::vector<Heartbeats::Connection>(),
                                       std::move(lines)),
          nullptr};
}

}  // namespace

HostConnections connect_hosts(Channel& channel, const Layout& layout) {
  return layout.local_rank_of(channel.rank()) == 0 ? connect_leaders(channel, layout)
                                                   : borrow_lines(channel, layout);
}

}  // namespace tutti::mpi
