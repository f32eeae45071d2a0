// How a link to a worker ends, and when that is a loss.
#include "ps/link/peer.hpp"

#include "base/text.hpp"

namespace tutti::ps {

std::optional<Request> Peer::take() {
  if (stopped_ || drained_) return std::nullopt;
  if (data_end_ && !has_ended() && std::chrono::steady_clock::now() > data_end_->heard_by) {
    handle_control();  // what has come by then
    if (!has_ended()) close(data_end_->error);
  }
  const bool ended = has_ended();
  std::optional<Request> request = take_request();
  if (!request) {
    drained_ = drained_ || ended;
  } else if (request->header.kind == RequestKind::stop) {
    stopped_ = true;
  }
  return request;
}

void Peer::answer(const Request& request, const ReplyHeader& header,
                  std::span<const std::byte> payload) {
  if (!has_ended()) send_answer(request, header, payload);
}

void Peer::handle_control() {
  if (has_ended()) return;
  const ControlNews news = hear();
  if (news.error) return close(*news.error);
  if (news.asked) send(control_, ControlByte::here);
}

void Peer::handle_data() {
  if (has_ended() || data_end_) return;
  const std::optional<int> error = move_data(kMostInATurn);
  if (!error || has_ended()) return;
  drain();
  close_data();
  if (has_ended()) return;  // for what has come in there
  // Why the worker leaves comes over the other connection, which may be late.
  data_end_ = DataEnd{*error, std::chrono::steady_clock::now() + kForTheEnd};
  handle_control();
}

ControlNews Peer::hear() {
  ControlNews news = receive(control_, left_);
  left_ = left_ || news.told;
  why_ += news.reason;
  why_.resize(whole_characters(why_, kMostReason));
  return news;
}

void Peer::close(int error) {
  if (!data_end_) drain();
  if (has_ended()) return;  // for what has come in there
  reason_ =
      !left_ ? reason_of(error) : "it has left without stop" + (why_.empty() ? "" : ": " + why_);
  control_ = {};
  close_data();
}

void Peer::give_up(const std::string& reason) {
  end();
  reason_ = reason;
}

void Peer::end(ControlByte why) {
  if (has_ended()) return;
  send(control_, why);
  receive(control_);  // or the kernel would end it with a reset, and not send the byte again
  control_ = {};
  close_data();
  drained_ = true;
}

std::optional<std::string> Peer::loss() {
  if (stopped_ || !drained_) return std::nullopt;
  return std::exchange(reason_, std::nullopt);
}

}  // namespace tutti::ps
