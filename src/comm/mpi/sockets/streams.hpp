// Messages of collectives over TCP connections of their own.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "comm/mpi/sockets/confirming.hpp"
#include "comm/mpi/sockets/gathering.hpp"
#include "comm/mpi/sockets/socket.hpp"
#include "comm/wire.hpp"

namespace tutti::mpi {

/**
 * What a rank exchanges with those of other hosts in collectives. Open MPI's messages over TCP
 * are copied once or twice more than the kernel does, and wait for the receiver to answer if they
 * are long; here what is long is read to where it belongs, and a message that finds nobody who
 * wants it stays in the kernel. So does all that moves: nothing but the calls below touches memory.
 *
 * A connection carries messages between two ranks: before each its length and its kind of traffic.
 * They are received in the order in which they were sent. One whose other end has gone brings
 * nothing any more: who that is, others find out. Safe from any thread.
 *
 * Of calls that go one way nobody answers, so what one sends is bounded by what the other kernel
 * has not acknowledged: beyond kMostUnconfirmed bytes a message waits, as one does whose receiver
 * has no room.
 */
class Streams {
 public:
  struct Connection {
    int rank;               ///< at the other end
    Wire::Traffic traffic;  ///< what goes ahead has one of its own, as it may wait the longest
    Socket socket;
    std::int64_t most_at_once = std::numeric_limits<std::int64_t>::max();  ///< see most_at_once()
  };
  /** So many bytes a call of the kernel is given for `socket`. Of one that paces not much: of
   * longer ones BBR takes the speed of the reader, who is busy sending meanwhile, for what the path
   * takes; if a call finds that all before has left, the kernel knows that it was the sender who
   * had no more. */
  static std::int64_t most_at_once(const Socket& socket) {
    return paces(socket) ? kPacedAtOnce : std::numeric_limits<std::int64_t>::max();
  }
  /** So many bytes that nobody has to answer may be on their way to a rank. */
  static constexpr std::int64_t kMostUnconfirmed = 256 << 10;
  explicit Streams(std::vector<Connection> connections);
  /** What was sent arrives nevertheless. */
  ~Streams();
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;

  /** Whether there is a connection for that: if not, MPI carries it, at both ends. */
  bool reaches(int rank, Wire::Traffic traffic) const { return find(rank, traffic) != nullptr; }
  /** The kinds that have connections: those of collectives, whose ranks wait for each other. */
  static constexpr bool carries(Wire::Traffic traffic) {
    return traffic == Wire::Traffic::collective || traffic == Wire::Traffic::ahead ||
           Wire::is_one_way(traffic);
  }
  /** These are told from requests of MPI, which are addresses, by is_one(). */
  Wire::Posted send(const std::byte* data, std::int64_t bytes, int destination,
                    Wire::Traffic traffic);
  Wire::Posted receive(std::byte* data, std::int64_t bytes, int source, Wire::Traffic traffic);
  /** See Wire::post_passed(). */
  Wire::Passed pass_on(std::byte* data, std::int64_t bytes, int source, int destination,
                       Wire::Traffic traffic);
  static bool is_one(Wire::Posted posted) { return (posted & 1U) != 0; }
  /** See Wire::hold(). */
  void hold(bool whether);
  /** See Wire::take(); of messages that are not longer than Wire::kShort. */
  std::optional<int> take(std::byte* data, std::int64_t bytes, Wire::Traffic traffic, int source,
                          std::span<const int> except = {});
  /** See Wire::has_read(). */
  bool has_read(int source, Wire::Traffic traffic);

  /** Moves what can be moved. Does not block. */
  void progress();
  /** Whether bytes of messages that had not ended have moved since it was last asked. From any
   * thread. */
  bool have_moved() { return moved_.exchange(false, std::memory_order_relaxed); }
  /** Whether so many of them have, since it was last so, or a nap began, that the next ones come
   * before a nap would end. From any thread. */
  bool are_flowing() {
    if (parts_.load(std::memory_order_relaxed) < kFlow) return false;
    parts_.store(0, std::memory_order_relaxed);
    return true;
  }
  void note_nap() { parts_.store(0, std::memory_order_relaxed); }
  /** Sleeps for `limit`, or until something comes of those of whom a message is awaited, at most
   * kMostLookedAt, unless one is under way, whose parts would end naps that a slow wire is to have.
   * What stays unread ends one, and after each read another. */
  void nap(std::chrono::microseconds limit);
  /** Whether `posted` has ended; then it is none any more. */
  bool take_ended(Wire::Posted posted);
  /** A receive for which nothing has come. */
  void withdraw(Wire::Posted receive);
  /** Nothing moves any more, and nobody's memory is touched. */
  void stop() noexcept;
  /** Whether mistaken() or broken() may name somebody. */
  bool are_in_trouble() const { return in_trouble_.load(std::memory_order_relaxed); }
  /** A rank that has sent a longer message than was wanted, or a shorter one than was to be passed
   * on, which ends its connection. */
  std::optional<int> mistaken() const;
  /** A rank with which messages have been waiting for kPatience at `now`, as their connection has
   * ended: a rank that has left or died is known otherwise by then, and so is the mismatch of one
   * that has left without a word. */
  std::optional<int> broken(std::chrono::steady_clock::time_point now);

 private:
  /** Goes before a message: its length, and its traffic in the lowest byte, with kConfirm. */
  using Header = std::uint64_t;
  /** The sender may hold back what follows until this is confirmed. */
  static constexpr Header kConfirm = 0x80;
  static constexpr std::int64_t kHeader = sizeof(Header);
  /** Of so many bytes that went one way it is looked whether they are acknowledged. */
  static constexpr std::int64_t kBetweenLooks = 64 << 10;
  static constexpr std::int64_t kPacedAtOnce = 2 * (Wire::kPiece + kHeader);
  /** Bytes that a wire of 10 Gbit/s carries while a wait spins, on a thread of the library's own;
   * while one of a caller does, a wire of 2 Gbit/s. */
  static constexpr std::int64_t kFlow = 4 * Wire::kPiece;
  /** With more connections naps are as long as they may. */
  static constexpr std::size_t kMostLookedAt = 32;
  static constexpr int kNone = -1;
  static constexpr std::chrono::seconds kPatience{2};
  /** So much is read at once where a message begins, ... */
  static constexpr std::int64_t kEarly = 4096;
  static_assert(kEarly >= Wire::kShort + kHeader);
  /** ... and where that may be a note, which more notes follow, or data, or a message for which
   * there is no more room than that: 16 KiB as a whole. */
  static constexpr std::int64_t kEarlyOfShort = 16384 + 512;
  /** So much is read at once of what is passed on, so that it leaves while more is read. */
  static constexpr std::int64_t kPassedAtOnce = 512 << 10;
  /** So much of such a message may have come and not been sent on: who does not take it holds up
   * who sends it, too, and both look for who that is. */
  static constexpr std::int64_t kMostHeldBack = 2 * kPassedAtOnce;
  /** What is looked at stays on the connection. */
  enum class Reading : std::uint8_t { take, look };
  struct Message {
    std::byte* data = nullptr;
    Header header = 0;       ///< as it is sent
    std::int64_t bytes = 0;  ///< of a receive at most, until it has begun
    std::int64_t moved = 0;  ///< of a send with the header
    std::int64_t there = 0;  ///< bytes of a send that have come here
    int next = kNone;
    int passes_on = kNone;  ///< of a receive: the send of what has come,
    int to = kNone;         ///< and its stream
    Wire::Traffic traffic = Wire::Traffic::collective;
    bool begun = false;  ///< of a receive: the header has come
    bool ended = false;

    /** Whether its header may leave. */
    bool has_come() const { return there > 0 || bytes == 0; }
  };
  /** Messages by number, in their order. */
  struct Queue {
    int first = kNone;
    int last = kNone;
  };
  struct Stream {
    explicit Stream(Connection given)
        : connection(std::move(given)), early(kEarlyOfShort), confirming(connection.socket) {}
    Connection connection;
    Queue sends;
    Queue receives;
    std::vector<std::byte> early;  ///< what was read along with headers: `used` to `come`
    std::int64_t used = 0;
    std::int64_t come = 0;
    std::int64_t seen = 0;         ///< bytes up to `come` that the connection has, too
    std::int64_t unconfirmed = 0;  ///< bytes that went one way since it was looked after them
    Gathering gathering{};
    Confirming confirming;
    bool is_awaited = false;  ///< a message of it, by take()
    bool takes = true;        ///< what is sent, as far as is known
    bool brings = true;       ///< something
    /** Since when messages wait for what has ended. */
    std::optional<std::chrono::steady_clock::time_point> waits_since{};

    bool is_open() const { return takes && brings; }
    bool awaits() const { return brings && (receives.first != kNone || is_awaited); }
    bool waits() const {
      return (!takes && sends.first != kNone) ||
             (!brings && (receives.first != kNone || is_awaited));
    }
  };

  static constexpr std::size_t column_of(Wire::Traffic traffic) {
    return traffic == Wire::Traffic::ahead ? 1 : 0;
  }
  static constexpr Header header_of(std::int64_t bytes, Wire::Traffic traffic) {
    return static_cast<Header>(bytes) << 8U | static_cast<Header>(traffic);
  }
  static constexpr std::int64_t length_in(Header header) {
    return static_cast<std::int64_t>(header >> 8U);
  }
  static constexpr Wire::Traffic traffic_in(Header header) {
    return static_cast<Wire::Traffic>(header & 0x7FU);
  }

  // With mutex_ held, but for find():
  const Stream* find(int rank, Wire::Traffic traffic) const;
  Stream& stream_to(int rank, Wire::Traffic traffic);
  Message& at(int number) { return messages_[static_cast<std::size_t>(number)]; }
  int add(Queue& queue, const Message& message);
  void end_first(Queue& queue);
  void push(Stream& stream);
  void pull(Stream& stream);
  /** What has come of `receive` is sent on, if it is one to be passed on. */
  void pass_on(const Message& receive);
  bool waits_for_its_send(const Message& receive);
  bool has_room(Stream& stream);
  void note_header(Stream& stream, Header header);
  bool begin(Stream& stream, Message& message);
  bool take_from(Stream& stream, std::byte* data, std::int64_t bytes, Wire::Traffic traffic);
  /** Of the next message, if it has come: reads at most `most` bytes for that. */
  std::optional<Header> next_header(Stream& stream, std::int64_t most, Reading how);
  /** Where it has. */
  static Header header_at(const Stream& stream);
  void read_early(Stream& stream, std::int64_t most, Reading how);
  /** Whether nothing is left on the connection of what was looked at. */
  bool take_off(Stream& stream);
  void note_part(std::int64_t bytes) {
    moved_.store(true, std::memory_order_relaxed);
    parts_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void note_mistake(Stream& stream);
  void note_takes_nothing(Stream& stream);
  /** The connections that end a nap as they bring something, which is made sure of: how many there
   * are. With mutex_ held. */
  std::size_t list_awaited(std::span<pollfd> entries);
  void note_end(Stream& stream, std::int64_t come);
  std::int64_t read(Stream& stream, std::byte* to, std::int64_t bytes, Reading how);
  std::int64_t read_rest(Stream& stream, const Message& message, std::int64_t bytes);

  std::vector<Stream> streams_;
  std::vector<std::array<int, 2>> numbers_;  // of streams, by rank and traffic
  std::vector<Message> messages_;
  std::vector<int> free_;  // of these
  mutable std::mutex mutex_;
  std::optional<int> mistaken_;
  std::atomic<bool> in_trouble_ = false;
  bool stopped_ = false;
  bool held_ = false;
  std::int64_t reads_ = 0;          ///< that have brought something
  std::int64_t reads_at_end_ = -1;  ///< when a nap was last ended, those before it began
  std::atomic<bool> moved_ = false;
  std::atomic<std::int64_t> parts_ = 0;  ///< bytes, see are_flowing()
};

}  // namespace tutti::mpi
