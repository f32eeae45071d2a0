// Puts messages on connections, and takes them off.
#include "comm/mpi/sockets/streams.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/memory.hpp"

namespace tutti::mpi {
namespace {

/** Messages that a call gives to the kernel. */
constexpr std::size_t kMessagesAtOnce = 32;
/** Messages under way on a connection that need no more memory. */
constexpr std::size_t kFewAtOnce = 32;

/** Of a connection that nothing is sent on, which would show it. */
bool has_ended(const Socket& socket) {
  pollfd entry{socket.get(), 0, 0};  // errors are told unasked
  return ::poll(&entry, 1, 0) > 0 && (entry.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0;
}

}  // namespace

Streams::Streams(std::vector<Connection> connections) {
  streams_.reserve(connections.size());
  messages_.reserve(kFewAtOnce * connections.size());
  free_.reserve(kFewAtOnce * connections.size());
  for (Connection& connection : connections) {
    const auto rank = static_cast<std::size_t>(connection.rank);
    if (numbers_.size() <= rank) numbers_.resize(rank + 1, {kNone, kNone});
    numbers_[rank][column_of(connection.traffic)] = static_cast<int>(streams_.size());
    streams_.emplace_back(std::move(connection));
  }
}

Streams::~Streams() {
  // A connection that is closed with something unread drops what has not left yet.
  for (const Stream& stream : streams_) discard_input(stream.connection.socket);
}

const Streams::Stream* Streams::find(int rank, Wire::Traffic traffic) const {
  if (!carries(traffic)) return nullptr;
  const auto row = static_cast<std::size_t>(rank);
  if (row >= numbers_.size()) return nullptr;
  const int number = numbers_[row][column_of(traffic)];
  return number == kNone ? nullptr : &streams_[static_cast<std::size_t>(number)];
}

Streams::Stream& Streams::stream_to(int rank, Wire::Traffic traffic) {
  return streams_[static_cast<std::size_t>(
      numbers_[static_cast<std::size_t>(rank)][column_of(traffic)])];
}

// --- Messages -----------------------------------------------------------------------------------

int Streams::add(Queue& queue, const Message& message) {
  if (free_.empty()) {
    free_.push_back(static_cast<int>(messages_.size()));
    messages_.emplace_back();
  }
  const int number = free_.back();
  free_.pop_back();
  at(number) = message;
  (queue.first == kNone ? queue.first : at(queue.last).next) = number;
  queue.last = number;
  return number;
}

void Streams::end_first(Queue& queue) {
  Message& message = at(queue.first);
  message.ended = true;
  queue.first = message.next;
}

namespace {

Wire::Posted handle_of(int number) { return static_cast<Wire::Posted>(number) << 1U | 1U; }
int number_behind(Wire::Posted posted) { return static_cast<int>(posted >> 1U); }

}  // namespace

bool Streams::take_ended(Wire::Posted posted) {
  const std::lock_guard lock(mutex_);
  const int number = number_behind(posted);
  if (!at(number).ended) return false;
  free_.push_back(number);
  return true;
}

void Streams::withdraw(Wire::Posted receive) {
  const std::lock_guard lock(mutex_);
  const int number = number_behind(receive);
  for (Stream& stream : streams_) {
    int before = kNone;
    for (int one = stream.receives.first; one != kNone; before = one, one = at(one).next) {
      if (one != number) continue;
      (before == kNone ? stream.receives.first : at(before).next) = at(one).next;
      if (stream.receives.last == one) stream.receives.last = before;
      free_.push_back(number);
      return;
    }
  }
}

Wire::Posted Streams::send(const std::byte* data, std::int64_t bytes, int destination,
                           Wire::Traffic traffic) {
  const std::lock_guard lock(mutex_);
  Stream& stream = stream_to(destination, traffic);
  const bool is_first = stream.sends.first == kNone;
  Message message{
      .header = header_of(bytes, traffic), .bytes = bytes, .there = bytes, .traffic = traffic};
  const bool is_note = traffic == Wire::Traffic::note;
  stream.confirming.note_send(stream.connection.socket, traffic, bytes);
  if (stream.gathering.before(stream.connection.socket, is_note, !is_first)) {
    message.header |= kConfirm;
  }
  message.data = const_cast<std::byte*>(data);  // it is only read
  const int number = add(stream.sends, message);
  if (is_first) push(stream);
  return handle_of(number);
}

void Streams::hold(bool whether) {
  const std::lock_guard lock(mutex_);
  held_ = whether;
  if (held_) return;
  for (Stream& stream : streams_) {
    if (stream.sends.first != kNone) push(stream);
  }
}

Wire::Posted Streams::receive(std::byte* data, std::int64_t bytes, int source,
                              Wire::Traffic traffic) {
  const std::lock_guard lock(mutex_);
  const Message message{.data = data, .bytes = bytes, .traffic = traffic};
  return handle_of(add(stream_to(source, traffic).receives, message));
}

/** What is to be passed on leaves as it comes. */
Wire::Passed Streams::pass_on(std::byte* data, std::int64_t bytes, int source, int destination,
                              Wire::Traffic traffic) {
  const std::lock_guard lock(mutex_);
  Stream& to = stream_to(destination, traffic);
  to.confirming.note_send(to.connection.socket, traffic, bytes);
  to.gathering.before(to.connection.socket, false, to.sends.first != kNone);
  const Message send{
      .data = data, .header = header_of(bytes, traffic), .bytes = bytes, .traffic = traffic};
  Message receive{.data = data, .bytes = bytes, .traffic = traffic};
  receive.passes_on = add(to.sends, send);
  receive.to = static_cast<int>(&to - streams_.data());
  return {handle_of(add(stream_to(source, traffic).receives, receive)),
          handle_of(receive.passes_on)};
}

// --- Bytes --------------------------------------------------------------------------------------

void Streams::progress() {
  const std::lock_guard lock(mutex_);
  for (Stream& stream : streams_) {
    if (stream.sends.first != kNone) push(stream);
    if (stream.receives.first != kNone) pull(stream);
  }
}

void Streams::stop() noexcept {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
}

std::optional<int> Streams::mistaken() const {
  const std::lock_guard lock(mutex_);
  return mistaken_;
}

std::optional<int> Streams::broken(std::chrono::steady_clock::time_point now) {
  const std::lock_guard lock(mutex_);
  for (Stream& stream : streams_) {
    if (stream.is_open() || stopped_) continue;
    if (!stream.waits()) {
      stream.waits_since.reset();
    } else if (!stream.waits_since) {
      stream.waits_since = now;
    } else if (now - *stream.waits_since > kPatience) {
      return stream.connection.rank;
    }
  }
  return std::nullopt;
}

/** Whether the other kernel has most of what went one way: not, if the connection has ended. */
bool Streams::has_room(Stream& stream) {
  if (stream.unconfirmed < kBetweenLooks) return true;
  int left = 0;
  const bool known = ::ioctl(stream.connection.socket.get(), SIOCOUTQ, &left) == 0;
  if (!known || left <= kMostUnconfirmed) {
    stream.unconfirmed = 0;
    return true;
  }
  if (has_ended(stream.connection.socket)) note_takes_nothing(stream);
  return false;
}

void Streams::note_takes_nothing(Stream& stream) {
  stream.takes = false;
  in_trouble_.store(true, std::memory_order_relaxed);
}

void Streams::push(Stream& stream) {
  if (!stream.takes || stopped_ || held_) return;
  while (stream.sends.first != kNone && has_room(stream)) {
    std::array<iovec, 2 * kMessagesAtOnce> parts;
    std::size_t count = 0;
    std::int64_t wanted = 0;
    for (int one = stream.sends.first; one != kNone && count < parts.size(); one = at(one).next) {
      Message& message = at(one);
      if (!message.has_come() || stream.connection.most_at_once - wanted <= kHeader) break;
      const std::int64_t of_header = std::min(message.moved, kHeader);
      const std::int64_t of_data = message.moved - of_header;
      parts[count++] = {bytes_of(message.header).data() + of_header,
                        static_cast<std::size_t>(kHeader - of_header)};
      wanted += kHeader - of_header;
      const std::int64_t more =
          std::min(message.there - of_data, stream.connection.most_at_once - wanted);
      parts[count++] = {message.data + of_data, static_cast<std::size_t>(more)};
      wanted += more;
      if (message.there < message.bytes) break;
    }
    if (wanted == 0) return;
    msghdr call{};
    call.msg_iov = parts.data();
    call.msg_iovlen = count;
    std::int64_t moved =
        ::sendmsg(stream.connection.socket.get(), &call, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (moved < 0) {
      if (!is_to_be_tried_again()) note_takes_nothing(stream);
      return;
    }
    stream.confirming.note_sent();
    take_off(stream);
    const bool all = moved == wanted;
    const std::int64_t sent = moved;
    while (moved > 0) {
      Message& message = at(stream.sends.first);
      const std::int64_t more = std::min(moved, kHeader + message.bytes - message.moved);
      message.moved += more;
      moved -= more;
      if (Wire::is_one_way(message.traffic)) stream.unconfirmed += more;
      if (message.moved == kHeader + message.bytes) end_first(stream.sends);
    }
    const bool has_begun = stream.sends.first != kNone && at(stream.sends.first).moved > 0;
    if (has_begun) note_part(sent);
    if (!all) return;
  }
}

void Streams::pull(Stream& stream) {
  while (stream.receives.first != kNone && stream.brings && !stopped_) {
    Message& message = at(stream.receives.first);
    if (!message.begun && !begin(stream, message)) return;
    if (waits_for_its_send(message)) return;
    const std::int64_t left = message.bytes - message.moved;
    const std::int64_t early = std::min(left, stream.come - stream.used);
    copy_bytes(message.data + message.moved, stream.early.data() + stream.used, early);
    stream.used += early;
    message.moved += early;
    if (early < left) {
      const std::int64_t come = read_rest(stream, message, left - early);
      message.moved += come;
      if (come < left - early) {
        if (come > 0) note_part(come);
        return pass_on(message);
      }
    }
    end_first(stream.receives);
    pass_on(message);
  }
}

bool Streams::waits_for_its_send(const Message& receive) {
  if (receive.passes_on == kNone) return false;
  const std::int64_t sent = std::max<std::int64_t>(at(receive.passes_on).moved - kHeader, 0);
  return receive.moved - sent >= kMostHeldBack;
}

void Streams::pass_on(const Message& receive) {
  if (receive.passes_on == kNone) return;
  at(receive.passes_on).there = receive.moved;
  push(streams_[static_cast<std::size_t>(receive.to)]);
}

void Streams::note_mistake(Stream& stream) {
  mistaken_ = stream.connection.rank;
  stream.brings = false;
  in_trouble_.store(true, std::memory_order_relaxed);
}

/** Reads what comes next: how much of that belongs to which message is not known yet. */
void Streams::read_early(Stream& stream, std::int64_t most, Reading how) {
  if (!take_off(stream)) return;
  const auto begin = stream.early.begin();
  std::copy(begin + stream.used, begin + stream.come, begin);
  stream.come -= std::exchange(stream.used, 0);
  const std::int64_t come =
      read(stream, stream.early.data() + stream.come, most - stream.come, how);
  stream.come += come;
  if (how == Reading::look) stream.seen = come;
}

std::optional<Streams::Header> Streams::next_header(Stream& stream, std::int64_t most,
                                                    Reading how) {
  if (stream.come - stream.used < kHeader) read_early(stream, most, how);
  if (stream.come - stream.used < kHeader) return std::nullopt;
  return header_at(stream);
}

Streams::Header Streams::header_at(const Stream& stream) {
  Header header = 0;
  std::memcpy(&header, stream.early.data() + stream.used, sizeof header);
  return header;
}

void Streams::note_header(Stream& stream, Header header) {
  const bool is_to_confirm = (header & kConfirm) != 0;
  if (is_to_confirm) take_off(stream);  // what was looked at alone is not confirmed
  stream.gathering.note_message();
  stream.confirming.note_message(stream.connection.socket, traffic_in(header),
                                 kHeader + length_in(header), is_to_confirm);
}

/** Whether the next message has begun to come, and is of the kind that is wanted. */
bool Streams::begin(Stream& stream, Message& message) {
  const bool is_short = kHeader + message.bytes <= kEarlyOfShort;
  const auto header = next_header(stream, is_short ? kEarlyOfShort : kEarly, Reading::take);
  if (!header || traffic_in(*header) != message.traffic) return false;
  const std::int64_t length = length_in(*header);
  if (length > message.bytes || (length < message.bytes && message.passes_on != kNone)) {
    note_mistake(stream);
    return false;
  }
  note_header(stream, *header);
  stream.used += kHeader;
  message.bytes = length;
  message.begun = true;
  return true;
}

/** Of a read that has brought `come` bytes, or -1: whether nothing will come any more. */
void Streams::note_end(Stream& stream, std::int64_t come) {
  if (come > 0) ++reads_;
  if (come > 0 || (come < 0 && is_to_be_tried_again())) return;
  stream.brings = false;
  in_trouble_.store(true, std::memory_order_relaxed);
}

/** Reads what a message lacks, and along with it the length of the next one: how much came of the
 * `bytes` bytes of the first. What was read early is used up by then. */
std::int64_t Streams::read_rest(Stream& stream, const Message& message, std::int64_t bytes) {
  if (!take_off(stream)) return 0;
  std::byte* const to = message.data + message.moved;
  if (message.passes_on != kNone && bytes > kPassedAtOnce) {
    return read(stream, to, kPassedAtOnce, Reading::take);
  }
  std::array<iovec, 2> parts{
      {{to, static_cast<std::size_t>(bytes)}, {stream.early.data(), kEarly}}};
  msghdr call{};
  call.msg_iov = parts.data();
  call.msg_iovlen = parts.size();
  const ssize_t come = ::recvmsg(stream.connection.socket.get(), &call, MSG_DONTWAIT);
  note_end(stream, come);
  stream.confirming.note_read();
  stream.used = 0;
  stream.come = std::max<std::int64_t>(come - bytes, 0);
  return std::clamp<std::int64_t>(come, 0, bytes);
}

/** How much of at most `bytes` bytes has come. */
std::int64_t Streams::read(Stream& stream, std::byte* to, std::int64_t bytes, Reading how) {
  const ssize_t come = ::recv(stream.connection.socket.get(), to, static_cast<std::size_t>(bytes),
                              MSG_DONTWAIT | (how == Reading::look ? MSG_PEEK : 0));
  note_end(stream, come);
  stream.confirming.note_read();
  return std::max<std::int64_t>(come, 0);
}

}  // namespace tutti::mpi
