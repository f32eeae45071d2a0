// What the connections between hosts tell of those at the other end.
#include "comm/mpi/heartbeats.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/text.hpp"

namespace tutti::mpi {
namespace {

/** How long a kernel has to acknowledge a byte. */
constexpr std::chrono::milliseconds kToAcknowledge{300};
/** A host that was silent for so long has missed at least two signs of life. */
constexpr std::uint32_t kSilence = 3000;  // ms

}  // namespace

Loss loss_of_hosts(const Layout& layout, std::span<const int> hosts) {
  Loss loss;
  std::string list;
  for (const int host : hosts) {
    const std::vector<int>& ranks = layout.ranks_of(host);
    loss.ranks.insert(loss.ranks.end(), ranks.begin(), ranks.end());
    list += (list.empty() ? "" : " and of ") + ranks_text(ranks);
  }
  loss.reason =
      std::string("no answer from the host") + (hosts.size() > 1 ? "s" : "") + " of " + list;
  return loss;
}

Heartbeats::~Heartbeats() {
  // A forked child has none of these sockets any more, and others may have their numbers.
  if (process_ == ::getpid()) send(Signal::goodbye);
}

void Heartbeats::send(Signal signal) noexcept {
  for (const Connection& connection : connections_) {
    if (connection.socket) send_all(connection.socket, bytes_of(signal));
  }
}

void Heartbeats::tell(const FailureReport& failure) noexcept {
  std::array<std::byte, 1 + sizeof failure> message;
  message[0] = static_cast<std::byte>(Signal::failure);
  std::memcpy(&message[1], &failure, sizeof failure);
  for (const Connection& connection : connections_) {
    if (connection.socket) send_all(connection.socket, message);
  }
}

bool Heartbeats::receive(Connection& connection, std::optional<FailureReport>& failure) {
  std::array<std::byte, 1 + sizeof(FailureReport)> message;
  const auto first = std::span(message).first(1);
  for (;;) {
    // A failure's report is taken whole, so its first byte stays until all of it is there.
    const ssize_t there =
        ::recv(connection.socket.get(), message.data(), message.size(), MSG_PEEK | MSG_DONTWAIT);
    if (there < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (there < 0) {
      connection.timed_out = errno != ECONNRESET && errno != EPIPE;
      return false;
    }
    if (there == 0) return false;
    const auto signal = static_cast<Signal>(message[0]);
    if (signal == Signal::failure) {
      if (there < std::ssize(message)) return true;
      if (receive_exactly(connection.socket, message) != Received::all) return false;
      std::memcpy(bytes_of(failure.emplace()).data(), &message[1], sizeof(FailureReport));
      return true;
    }
    connection.goodbye = connection.goodbye || signal == Signal::goodbye;
    if (receive_exactly(connection.socket, first) != Received::all) return false;
  }
}

std::optional<FailureReport> Heartbeats::look() {
  std::optional<FailureReport> failure;
  std::vector<int> ended;
  bool timed_out = false;
  for (Connection& connection : connections_) {
    if (!connection.socket || receive(connection, failure)) continue;
    connection.socket = {};
    timed_out = timed_out || connection.timed_out;
    if (!connection.timed_out && !connection.goodbye) {
      ended.push_back(layout_.ranks_of(connection.host).front());
    }
  }
  if (failure) return failure;  // who tells of one may end right afterwards
  if (ended.empty() && !timed_out) return failure;
  Loss loss{std::move(ended), "its process has ended"};
  if (timed_out) loss = loss_of_hosts(layout_, unreachable());
  if (!loss.ranks.empty()) failure.emplace().set_lost(loss.ranks, loss.reason);
  return failure;
}

void Heartbeats::ping() noexcept {
  if (Clock::now() - pinged_ < 2 * kToAcknowledge) return;
  pinged_ = Clock::now();
  send(Signal::ping);
}

std::vector<int> Heartbeats::unreachable() const {
  const bool acknowledged_by_now = Clock::now() - pinged_ >= kToAcknowledge;
  std::vector<int> hosts;
  for (const Connection& connection : connections_) {
    const bool silent = connection.socket
                            ? silence_of(connection.socket) > kSilence ||
                                  (acknowledged_by_now && !all_acknowledged(connection.socket))
                            : connection.timed_out;
    if (silent) hosts.push_back(connection.host);
  }
  std::sort(hosts.begin(), hosts.end());
  return hosts;
}

}  // namespace tutti::mpi
