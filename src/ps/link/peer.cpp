// How a link to a worker ends, and when that is a loss.
#include "ps/link/peer.hpp"

#include <cerrno>

namespace tutti::ps {
namespace {

/** Whether an error of a connection says that the other process has closed it. */
bool is_end(int error) { return error == 0 || error == ECONNRESET || error == EPIPE; }

}  // namespace

std::optional<Request> Peer::take() {
  if (stopped_ || drained_) return std::nullopt;
  const bool ended = has_ended();
  std::optional<Request> request = take_request();
  if (!request) {
    drained_ = ended;
  } else if (request->header.kind == RequestKind::stop) {
    stopped_ = true;
  }
  return request;
}

void Peer::answer(const Request& request, const ReplyHeader& header,
                  std::span<const std::byte> payload) {
  if (!has_ended()) send_answer(request, header, payload);
}

void Peer::handle_socket() {
  if (has_ended()) return;
  const std::optional<int> error = move_bytes();
  if (!error || has_ended()) return;
  if (!is_end(*error)) {
    reason_ = "its host cannot be reached";
  } else {
    reason_ = has_left() ? "it has left without stop" : "its process has ended";
  }
  socket_ = {};
}

void Peer::give_up(const std::string& reason) {
  end();
  reason_ = reason;
}

void Peer::end() {
  if (has_ended()) return;
  say_end();
  socket_ = {};
  drained_ = true;
}

std::optional<std::string> Peer::loss() {
  if (stopped_ || !drained_) return std::nullopt;
  return std::exchange(reason_, std::nullopt);
}

}  // namespace tutti::ps
