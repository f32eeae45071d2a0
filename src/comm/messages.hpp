// The messages of one call: which send goes with which recv, and how far each of them is.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/recycled.hpp"
#include "comm/envelope.hpp"
#include "tutti/call.hpp"

namespace tutti {

/** What others have offered to this rank, and no recv has taken yet. */
class Inbox {
 public:
  struct Entry {
    int source = 0;
    Offer offer;
  };

  explicit Inbox(int ranks) : all_shown_(static_cast<std::size_t>(ranks)) {}

  void add(int source, const Offer& offer);
  /** The first offer of `source` with `tag`; of kAnySource, of the ranks in turns: whoever has
   * waited while others were served comes before these. `is_busy(rank)` leaves out a rank. Null if
   * there is none. */
  template <class IsBusy>
  const Entry* find(int source, std::int32_t tag, const IsBusy& is_busy) const;
  /** Takes out an entry that find() has found. */
  void take(const Entry& entry, bool in_turn);
  const std::vector<Entry>& entries() const { return entries_; }
  /** Whether `source` has shown all that its call under way has for this rank. */
  bool all_shown(int source) const { return all_shown_[static_cast<std::size_t>(source)]; }

 private:
  std::vector<Entry> entries_;  // those of one source in the order in which they were sent
  std::vector<bool> all_shown_;
  int next_ = 0;  // whose turn it is
};

/** A message on its way between two ranks that have agreed on it. */
class Movement {
 public:
  Movement() = default;
  Movement(const Movement&) = delete;
  Movement& operator=(const Movement&) = delete;
  virtual ~Movement() = default;
  /** Moves what can be moved now; whether that was anything. Does not block. */
  virtual bool progress() = 0;
  virtual bool done() const = 0;
};

/**
 * Carries messages between this rank and some others, as a rendezvous: the sender offers, the
 * receiver accepts, the data move. One thread sends and one receives at a time. Nothing blocks.
 */
class MessageCarrier {
 public:
  virtual ~MessageCarrier() = default;

  /** Shows `peer` a message. False if it has not looked at the one before yet. */
  virtual bool offer(int peer, const Offer& offer) = 0;
  /** What `peer` wants in place of message `number`; nothing before it has accepted that. */
  virtual std::optional<Envelope> accepted(int peer, std::uint32_t number) = 0;
  virtual std::unique_ptr<Movement> send(int peer, const ConstView& data) = 0;

  /** Adds what others have offered; whether that was anything. */
  virtual bool collect(Inbox& inbox) = 0;
  /** Tells `peer` what is wanted in place of its message `wanted.number`. False if it has not
   * looked at the answer before yet. */
  virtual bool accept(int peer, const Envelope& wanted) = 0;
  virtual std::unique_ptr<Movement> receive(int peer, const View& data) = 0;

  /** Sends what was told to others; whether all of it has left. */
  virtual bool flush() { return true; }
  /** Whether it has. */
  virtual bool flushed() const { return true; }
};

/** What a rank keeps of its messages from one call to the next. */
struct MessageState {
  explicit MessageState(int ranks) : sent(static_cast<std::size_t>(ranks)), inbox(ranks) {}

  std::vector<std::uint32_t> sent;  ///< messages so far, by receiver
  Inbox inbox;
};

/**
 * A send, a recv or an exchange under way. All its messages are offered at once and all that it
 * receives is wanted at once, so it does not matter in which order the other ranks come to them.
 *
 * A recv takes the first message of its source that has its tag. Where the messages that a rank's
 * call has for another, and those that the other's call wants of it, differ in their tags, both
 * would wait for ever: the receiver finds that out, with a MismatchError.
 */
class Transfers {
 public:
  /** How a rank is reached. */
  struct Route {
    MessageCarrier* carrier = nullptr;
    int peer = 0;  ///< as the carrier counts the ranks
  };
  using RouteTo = std::function<Route(int rank)>;

  /** Of `call`, on rank `rank`. From any source: also by `carriers`, which are all that there are.
   */
  Transfers(const Call& call, int rank, MessageState& state, RouteTo route_to,
            std::initializer_list<MessageCarrier*> carriers);
  Transfers(const Transfers&) = delete;
  Transfers& operator=(const Transfers&) = delete;
  ~Transfers() = default;

  /** Does what can be done now; whether that was anything. Throws MismatchError. */
  bool progress();
  bool done() const { return open_ == 0 && flushed_; }
  /** Whether something is received. */
  bool receives() const { return !incoming_.empty(); }
  /** The other ranks without which it does not end, in no order. If there are none and it is not
   * done, it waits for whoever sends, or for another call of this rank. */
  std::vector<int> awaited() const;
  /** Those that are reached by `carrier`, as it counts them. */
  std::vector<int> awaited_by(const MessageCarrier& carrier) const;
  /** Whether one of the messages goes by `carrier`, or may. */
  bool uses(const MessageCarrier& carrier) const;
  /** Whether something from any source has not come yet. */
  bool waits_for_any() const;
  /** Why what depends on no other rank in particular has not ended within `timeout`, in words. */
  std::string nothing_came(std::chrono::milliseconds timeout) const;

 private:
  enum class State : std::uint8_t { waiting, offered, moving, ended };

  struct Side {
    State state = State::waiting;
    int peer = 0;  ///< kAnySource until a message is found
    Envelope envelope;
    Route route;
    std::unique_ptr<Movement> movement;
  };
  struct Outgoing : Side {
    ConstView data;
    std::ptrdiff_t before = -1;  ///< the message to the same rank that is offered first
  };
  struct Incoming : Side {
    View data;
    Received* received = nullptr;
  };

  /** Of several messages to one rank each is offered after the one before. */
  void put_in_order();
  void add_outgoing(const Message& message);
  void add_incoming(const Message& message);
  bool advance(Outgoing& message);
  bool advance(Incoming& message);
  bool offer(Outgoing& message);
  /** Moves a message that is moving; whether anything moved. */
  bool move(Side& message);
  void end(Side& message);
  /** Whether no message of `source` can be accepted now. */
  bool is_busy(int source) const;
  /** Gives offers to those who want them. */
  bool match();
  bool match(Incoming& message);
  bool is_wanted(const Inbox::Entry& entry) const;
  /** visit(message) for those without whose peers this does not end. */
  template <class Visit>
  void for_each_awaited(const Visit& visit) const;
  void check_tags() const;

  int rank_;
  MessageState& state_;
  RouteTo route_to_;
  RecycledVector<MessageCarrier*> carriers_;  // in use
  std::vector<Outgoing> outgoing_;
  std::vector<Incoming> incoming_;
  std::size_t open_ = 0;            // messages that have not ended
  RecycledVector<int> unanswered_;  // sources that have yet to read what this rank told them
  bool flushed_ = false;            // what was told to others has left
  bool look_ = true;                // at the offers: something has changed since the last time
};

}  // namespace tutti
