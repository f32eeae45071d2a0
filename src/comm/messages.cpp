// Matches what is offered with what is wanted, and moves it.
#include "comm/messages.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/memory.hpp"
#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti {

// --- What was offered ---------------------------------------------------------------------------

void Inbox::add(int source, const Offer& offer) {
  entries_.push_back({source, offer});
  all_shown_[static_cast<std::size_t>(source)] = offer.envelope.last;
}

template <class IsBusy>
const Inbox::Entry* Inbox::find(int source, std::int32_t tag, const IsBusy& is_busy) const {
  const auto ranks = static_cast<int>(all_shown_.size());
  const auto turn_of = [&](const Entry& entry) { return (entry.source - next_ + ranks) % ranks; };
  const Entry* found = nullptr;
  for (const Entry& entry : entries_) {
    if (source != kAnySource && entry.source != source) continue;
    if (!entry.offer.envelope.has_tag(tag) || is_busy(entry.source)) continue;
    if (found == nullptr || turn_of(entry) < turn_of(*found)) found = &entry;
  }
  return found;
}

void Inbox::take(const Entry& entry, bool in_turn) {
  if (in_turn) next_ = (entry.source + 1) % static_cast<int>(all_shown_.size());
  entries_.erase(entries_.begin() + (&entry - entries_.data()));
}

// --- A call -------------------------------------------------------------------------------------

Transfers::Transfers(const Call& call, int rank, MessageState& state, RouteTo route_to,
                     std::initializer_list<MessageCarrier*> carriers)
    : rank_(rank), state_(state), route_to_(std::move(route_to)) {
  if (call.operation == Operation::send) {
    add_outgoing(Message::send(call.in, call.peer, call.tag));
  } else if (call.operation == Operation::recv) {
    add_incoming(Message::recv(call.out, call.peer, call.tag, call.received));
  } else {
    for (const Message& message : call.messages) {
      message.receives ? add_incoming(message) : add_outgoing(message);
    }
  }
  open_ = outgoing_.size() + incoming_.size();
  if (outgoing_.size() > 1) put_in_order();
  for (MessageCarrier* const carrier : carriers) {
    const auto goes = [&](const Side& message) {
      return message.peer == kAnySource || message.route.carrier == carrier;
    };
    if (std::any_of(outgoing_.begin(), outgoing_.end(), goes) ||
        std::any_of(incoming_.begin(), incoming_.end(), goes)) {
      carriers_.push_back(carrier);
    }
  }
}

void Transfers::put_in_order() {
  std::vector<std::ptrdiff_t> latest(state_.sent.size(), -1);  // by receiver
  for (std::size_t i = 0; i < outgoing_.size(); ++i) {
    std::ptrdiff_t& before = latest[static_cast<std::size_t>(outgoing_[i].peer)];
    outgoing_[i].before = std::exchange(before, static_cast<std::ptrdiff_t>(i));
    if (outgoing_[i].before < 0) continue;
    outgoing_[static_cast<std::size_t>(outgoing_[i].before)].envelope.last = false;
  }
}

void Transfers::add_outgoing(const Message& message) {
  Outgoing& one = outgoing_.emplace_back();
  one.peer = message.peer;
  one.envelope = {message.in.count, message.tag, 0, message.in.dtype};
  one.route = route_to_(message.peer);
  one.data = message.in;
}

void Transfers::add_incoming(const Message& message) {
  Incoming& one = incoming_.emplace_back();
  one.peer = message.peer;
  one.envelope = {message.out.count, message.tag, 0, message.out.dtype};
  if (message.peer != kAnySource) one.route = route_to_(message.peer);
  one.data = message.out;
  one.received = message.received;
}

bool Transfers::uses(const MessageCarrier& carrier) const {
  return std::find(carriers_.begin(), carriers_.end(), &carrier) != carriers_.end();
}

bool Transfers::progress() {
  bool moved = false;
  for (Outgoing& message : outgoing_) moved = advance(message) || moved;
  if (receives()) {
    for (MessageCarrier* const carrier : carriers_) {
      look_ = carrier->collect(state_.inbox) || look_;
    }
    if (std::exchange(look_, false)) moved = match() || moved;
    for (Incoming& message : incoming_) moved = advance(message) || moved;
  }
  if (open_ > 0 || flushed_) return moved;
  flushed_ = std::all_of(carriers_.begin(), carriers_.end(),
                         [](MessageCarrier* carrier) { return carrier->flush(); });
  return moved || flushed_;
}

bool Transfers::offer(Outgoing& message) {
  if (message.before >= 0 &&
      outgoing_[static_cast<std::size_t>(message.before)].state == State::waiting) {
    return false;
  }
  std::uint32_t& sent = state_.sent[static_cast<std::size_t>(message.peer)];
  Offer offer{};
  message.envelope.number = sent + 1 == 0 ? 1 : sent + 1;
  offer.envelope = message.envelope;
  if (offer.carries()) copy_bytes(offer.data.data(), message.data.data, message.data.bytes());
  if (!message.route.carrier->offer(message.route.peer, offer)) return false;
  sent = message.envelope.number;
  message.state = State::offered;
  return true;
}

bool Transfers::advance(Outgoing& message) {
  switch (message.state) {
    case State::waiting:
      return offer(message);
    case State::offered: {
      MessageCarrier& carrier = *message.route.carrier;
      const auto wanted = carrier.accepted(message.route.peer, message.envelope.number);
      if (!wanted) return false;
      check_same(rank_, message.envelope, message.peer, *wanted);
      if (message.envelope.bytes() <= Offer::kCarried) {
        end(message);
      } else {
        message.movement = carrier.send(message.route.peer, message.data);
        message.state = State::moving;
      }
      return true;
    }
    default:
      return move(message);
  }
}

bool Transfers::advance(Incoming& message) {
  if (!move(message)) return false;
  look_ = look_ || message.state == State::ended;  // its source's next message may follow
  return true;
}

bool Transfers::move(Side& message) {
  if (message.state != State::moving) return false;
  const bool moved = message.movement->progress();
  if (message.movement->done()) {
    end(message);
    return true;
  }
  return moved;
}

void Transfers::end(Side& message) {
  message.movement.reset();
  message.state = State::ended;
  --open_;
}

// --- Matching -----------------------------------------------------------------------------------

bool Transfers::is_busy(int source) const {
  if (std::find(unanswered_.begin(), unanswered_.end(), source) != unanswered_.end()) return true;
  return std::any_of(incoming_.begin(), incoming_.end(), [source](const Incoming& message) {
    return message.state == State::moving && message.peer == source;
  });
}

bool Transfers::match() {
  bool matched = false;
  unanswered_.clear();
  for (Incoming& message : incoming_) {
    if (message.state == State::waiting) matched = match(message) || matched;
  }
  check_tags();
  return matched;
}

bool Transfers::match(Incoming& message) {
  const bool from_any = message.peer == kAnySource;
  const Inbox::Entry* const entry = state_.inbox.find(message.peer, message.envelope.tag,
                                                      [this](int rank) { return is_busy(rank); });
  if (entry == nullptr) return false;
  const int source = entry->source;
  const Offer offer = entry->offer;
  const Route route = route_to_(source);
  Envelope wanted = message.envelope;
  wanted.number = offer.envelope.number;
  if (!route.carrier->accept(route.peer, wanted)) {
    unanswered_.push_back(source);  // or what comes behind would be given its message
    look_ = true;
    return false;
  }
  state_.inbox.take(*entry, from_any);
  check_same(source, offer.envelope, rank_, wanted);
  message.peer = source;
  message.route = route;
  if (message.received != nullptr) *message.received = {source, offer.envelope.tag};
  if (offer.carries()) {
    copy_bytes(message.data.data, offer.data.data(), message.data.bytes());
    end(message);
    look_ = true;
  } else {
    message.movement = route.carrier->receive(route.peer, message.data);
    message.state = State::moving;
  }
  return true;
}

bool Transfers::is_wanted(const Inbox::Entry& entry) const {
  return std::any_of(incoming_.begin(), incoming_.end(), [&](const Incoming& message) {
    return message.state == State::waiting &&
           (message.peer == kAnySource || message.peer == entry.source) &&
           entry.offer.envelope.has_tag(message.envelope.tag);
  });
}

/** A rank's calls that send come one after the other, and so do this rank's that receive: if its
 * call has something left that this one does not want, and this one wants something else of it,
 * neither ends. */
void Transfers::check_tags() const {
  const auto& entries = state_.inbox.entries();
  for (const Inbox::Entry& left : entries) {
    if (!state_.inbox.all_shown(left.source) || is_wanted(left)) continue;
    for (const Incoming& message : incoming_) {
      if (message.state != State::waiting || message.peer != left.source) continue;
      const bool comes = std::any_of(entries.begin(), entries.end(), [&](const auto& entry) {
        return entry.source == message.peer && entry.offer.envelope.has_tag(message.envelope.tag);
      });
      if (comes) continue;
      throw MismatchError("rank " + std::to_string(left.source) + " sends " +
                          left.offer.envelope.describe() + " to rank " + std::to_string(rank_) +
                          ", which waits to receive " + message.envelope.describe() +
                          " from it before: each waits for the other");
    }
  }
}

// --- Waiting ------------------------------------------------------------------------------------

template <class Visit>
void Transfers::for_each_awaited(const Visit& visit) const {
  const auto visit_open = [&](const Side& message) {
    if (message.peer == kAnySource || message.peer == rank_) return;
    // Once all have ended, those are awaited who may not have taken yet what was told to them.
    if (message.state == State::ended && (open_ > 0 || message.route.carrier->flushed())) return;
    visit(message);
  };
  for (const Outgoing& message : outgoing_) visit_open(message);
  for (const Incoming& message : incoming_) visit_open(message);
}

std::vector<int> Transfers::awaited() const {
  std::vector<int> ranks;
  for_each_awaited([&](const Side& message) { ranks.push_back(message.peer); });
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::vector<int> Transfers::awaited_by(const MessageCarrier& carrier) const {
  std::vector<int> peers;
  for_each_awaited([&](const Side& message) {
    if (message.route.carrier == &carrier) peers.push_back(message.route.peer);
  });
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

bool Transfers::waits_for_any() const {
  return std::any_of(incoming_.begin(), incoming_.end(),
                     [](const Incoming& message) { return message.peer == kAnySource; });
}

std::string Transfers::nothing_came(std::chrono::milliseconds timeout) const {
  const std::string waited = "rank " + std::to_string(rank_) + " waited " + seconds_text(timeout);
  const auto is_open = [](const Side& message) { return message.state != State::ended; };
  if (!waits_for_any()) {
    const auto sent = std::find_if(outgoing_.begin(), outgoing_.end(), is_open);
    if (sent != outgoing_.end()) {
      return waited + " to send " + sent->envelope.describe() +
             " to itself, and no recv of its own took it";
    }
    // There is one: what has left and is not flushed has a receiver, who is awaited.
    const auto wanted = std::find_if(incoming_.begin(), incoming_.end(), is_open);
    return waited + " to receive " + wanted->envelope.describe() +
           " from itself, and no send of its own brought it";
  }
  const auto open = std::find_if(incoming_.begin(), incoming_.end(), [](const Incoming& message) {
    return message.peer == kAnySource;
  });
  std::vector<int> others(state_.sent.size());
  std::iota(others.begin(), others.end(), 0);
  std::erase(others, rank_);
  std::string text = waited + " to receive " + open->envelope.describe() +
                     " from any source, and nothing of the kind came from " +
                     (others.empty() ? "itself" : ranks_text(others));
  for (const Inbox::Entry& entry : state_.inbox.entries()) {
    text += "; rank " + std::to_string(entry.source) + " sends " + entry.offer.envelope.describe();
  }
  return text;
}

}  // namespace tutti
