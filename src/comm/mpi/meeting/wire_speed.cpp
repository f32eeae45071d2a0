// Sends to the next host what it drops.
#include "comm/mpi/meeting/wire_speed.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "base/waiter.hpp"

namespace tutti::mpi {
namespace {

constexpr std::int64_t kAtOnce = 64 << 10;
constexpr std::chrono::milliseconds kTest{10};
/** Whoever has nothing to do leaves its core to a host that is late, soon. */
constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kNap{100};

/** The connection for the test with another host; none if there is none. */
Socket& line_of(std::vector<Peer>& peers, int host, Socket& none) {
  const auto line = std::find_if(peers.begin(), peers.end(), [host](const Peer& peer) {
    return peer.host == host && peer.line == Line::test;
  });
  return line == peers.end() ? none : line->socket;
}

}  // namespace

WireSpeed::WireSpeed(Socket& to_next, Socket& from_previous, const TimeSource& time)
    : to_next_(to_next), from_previous_(from_previous), data_(kAtOnce), time_(time) {
  if (to_next_ && !do_not_pace(to_next_)) to_next_ = {};
}

bool WireSpeed::step() {
  const bool has_received = receive();
  return send() || has_received;
}

bool WireSpeed::receive() {
  if (!from_previous_) return false;
  // What is dropped need not be copied.
  const ssize_t come = ::recv(from_previous_.get(), nullptr, kBytes, MSG_TRUNC | MSG_DONTWAIT);
  if (come > 0) {
    confirm_at_once(from_previous_);  // or the last of them may be acknowledged 40 ms later
  } else if (come == 0 || !is_to_be_tried_again()) {
    from_previous_ = {};
  }
  return come > 0;
}

bool WireSpeed::send() {
  if (!to_next_) return false;
  const std::uint64_t acknowledged = state_of(to_next_).acknowledged;
  const auto now = time_.now();  // not before that, or what came meanwhile would look sooner
  if (left_ == 0) {
    if (acknowledged < awaited_) return false;
    is_fast_ = awaited_ > 0 && now - since_ <= kFast;
    if (is_fast_) {
      to_next_ = {};
      return true;
    }
    left_ = kBytes;
    awaited_ = acknowledged + kBytes;
    since_ = now;
  }
  const auto length = static_cast<std::size_t>(std::min(left_, kAtOnce));
  const ssize_t sent = ::send(to_next_.get(), data_.data(), length, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (sent > 0) left_ -= sent;
  if (sent < 0 && !is_to_be_tried_again()) to_next_ = {};
  return sent > 0;
}

void WireSpeed::nap(std::chrono::nanoseconds limit) const {
  std::array<pollfd, 2> ends{
      {{from_previous_.get(), POLLIN, 0}, {left_ > 0 ? to_next_.get() : -1, POLLOUT, 0}}};
  const timespec time{0, static_cast<long>(limit.count())};
  ::ppoll(ends.data(), ends.size(), &time, nullptr);
}

bool test_wire(std::vector<Peer>& peers, int own, int hosts, const TimeSource& time) {
  Socket none;
  Socket& to_next = line_of(peers, (own + 1) % hosts, none);
  Socket& from_previous = line_of(peers, (own + hosts - 1) % hosts, none);
  WireSpeed speed(to_next, from_previous, time);
  const auto begin = time.now();
  auto moved = begin;
  for (auto now = begin; !speed.is_done() && now - begin < kTest; now = time.now()) {
    if (speed.step()) {
      moved = now;
    } else if (now - moved < kSpin) {
      offer_core();
    } else {
      speed.nap(kNap);
    }
  }
  to_next = {};
  from_previous = {};
  return speed.is_fast();
}

}  // namespace tutti::mpi
