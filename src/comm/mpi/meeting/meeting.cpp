// Who connects says hello with the token that it was given, and is welcomed with its own.
#include "comm/mpi/meeting/meeting.hpp"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <utility>

namespace tutti::mpi {
namespace {

constexpr std::size_t kMostStrangers = 64;  // connections that have not said who they are
// A peer says who it is as soon as it sees that it is connected: for as long it may be kept from
// running, where ranks outnumber cores. Where all places are taken, who says nothing loses its own.
constexpr std::chrono::milliseconds kForAHello{100};

/** Who connects says, as the first thing: whom it wants, by the endpoint's token, and who it is. */
struct Hello {
  Token token;
  std::int32_t host = -1;
  Line line = Line::leaders;
};

}  // namespace

Connector::Connector(Peer& peer, const Endpoint& own, int own_host)
    : peer_(peer), own_(own), own_host_(own_host) {
  for (const Address address : addresses_of(peer.endpoint, own.network)) {
    Socket socket = start_connecting(address, peer.endpoint.port);
    if (socket) {
      attempts_.push_back({std::move(socket)});
    } else if (is_shortage(errno)) {
      peer.error = errno;
    }
  }
}

void Connector::step() {
  if (peer_.socket) return;
  std::erase_if(attempts_, [this](Attempt& attempt) { return !go_on(attempt); });
  if (peer_.socket) attempts_.clear();  // the other end has room for few
}

bool Connector::go_on(Attempt& attempt) {
  if (peer_.socket) return false;
  if (attempt.said_hello) {
    Token token;
    const Received received = receive_exactly(attempt.socket, token);
    if (received == Received::all && token == own_.token) peer_.socket = std::move(attempt.socket);
    return received == Received::too_few;
  }
  const Connecting state = connecting_state(attempt.socket);
  if (state != Connecting::done) return state == Connecting::under_way;
  peer_.has_heard = true;
  const Hello hello{peer_.endpoint.token, own_host_, peer_.line};
  attempt.said_hello = send_all(attempt.socket, bytes_of(hello));
  return attempt.said_hello;
}

void Acceptor::step() {
  let_in();
  std::erase_if(strangers_, [this](Stranger& stranger) {
    Hello hello;
    const Received received = receive_exactly(stranger.socket, bytes_of(hello));
    if (received == Received::all && hello.token == own_.token) {
      welcome(stranger.socket, hello.line, hello.host);
    }
    return received != Received::too_few;
  });
  if (strangers_.size() < kMostStrangers) return;
  // Those that are left have said nothing, however late this process has looked.
  const auto now = std::chrono::steady_clock::now();
  std::erase_if(strangers_, [now](const Stranger& one) { return now - one.since > kForAHello; });
}

void Acceptor::let_in() {
  const auto now = std::chrono::steady_clock::now();
  while (strangers_.size() < kMostStrangers) {
    Socket stranger = accept_from(listener_);
    if (!stranger) {
      if (is_shortage(errno)) error_ = errno;
      break;
    }
    strangers_.push_back({std::move(stranger), now});
  }
}

void Acceptor::welcome(Socket& stranger, Line line, int host) {
  const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& one) {
    return one.host == host && one.line == line;
  });
  if (peer == peers_.end() || peer->socket) return;
  if (send_all(stranger, peer->endpoint.token)) peer->socket = std::move(stranger);
}

}  // namespace tutti::mpi
