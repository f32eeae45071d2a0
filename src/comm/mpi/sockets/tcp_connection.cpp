// The signals of one byte, and the reports of failures, between two hosts.
#include "comm/mpi/sockets/tcp_connection.hpp"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

namespace tutti::mpi {

TcpConnection::News TcpConnection::receive() {
  News news;
  if (!take(news) && news.state == News::State::open) news.state = News::State::ended;
  return news;
}

bool TcpConnection::take(News& news) {
  std::array<std::byte, 1 + sizeof(FailureReport)> message;
  const auto first = std::span(message).first(1);
  for (;;) {
    // A failure's report is taken whole, so its first byte stays until all of it is there.
    const ssize_t there =
        ::recv(socket_->get(), message.data(), message.size(), MSG_PEEK | MSG_DONTWAIT);
    if (there < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (there < 0) {
      if (errno != ECONNRESET && errno != EPIPE) news.state = News::State::timed_out;
      return false;
    }
    if (there == 0) {  // or whoever has sent something meanwhile was told of a silence
      if (state_of(*socket_).given_up) news.state = News::State::timed_out;
      return false;
    }
    const auto signal = static_cast<Signal>(message[0]);
    if (signal == Signal::failure) {
      if (there < std::ssize(message)) {
        // The rest may never come: the kernel tells of an end once all has been read.
        const ConnectionState state = state_of(*socket_);
        if (!state.ended && !state.given_up) return true;
        if (unread(*socket_) > there) continue;
        if (state.given_up) news.state = News::State::timed_out;
        return false;
      }
      if (receive_exactly(*socket_, message) != Received::all) return false;
      std::memcpy(bytes_of(news.failure.emplace()).data(), &message[1], sizeof(FailureReport));
      return true;
    }
    news.goodbye = news.goodbye || signal == Signal::goodbye;
    if (receive_exactly(*socket_, first) != Received::all) return false;
  }
}

void TcpConnection::say_goodbye() noexcept {
  // A forked child has none of these sockets any more, and others may have their numbers.
  if (socket_->is_open()) send_all(*socket_, bytes_of(Signal::goodbye));
}

void TcpConnection::tell(const FailureReport& failure) noexcept {
  std::array<std::byte, 1 + sizeof failure> message;
  message[0] = static_cast<std::byte>(Signal::failure);
  std::memcpy(&message[1], &failure, sizeof failure);
  send_all(*socket_, message);
}

bool TcpConnection::all_have_ended() const {
  if (!host_line_) return false;
  discard_input(*host_line_);
  return state_of(*host_line_).ended;  // not one that this kernel has given up
}

// --- Lines --------------------------------------------------------------------------------------

bool TcpLine::ping() noexcept {
  if (reader_ == Reader::none) discard_input(*socket_);  // or what fills up is not acknowledged
  const ConnectionState state = state_of(*socket_);
  acknowledged_ = state.acknowledged;
  return !state.ended && send_all(*socket_, bytes_of(TcpConnection::Signal::ping));
}

bool TcpLine::has_answered() const {
  const ConnectionState state = state_of(*socket_);
  return state.ended || state.acknowledged != acknowledged_;
}

std::chrono::milliseconds TcpLine::silence() const {
  const ConnectionState state = state_of(*socket_);
  if (state.given_up) return std::chrono::milliseconds::max();
  return std::chrono::milliseconds(state.ended ? 0 : state.silence);
}

}  // namespace tutti::mpi
