// Messages of collectives over TCP connections of their own.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "comm/mpi/socket.hpp"
#include "comm/wire.hpp"

namespace tutti::mpi {

/**
 * What a leader exchanges with those of other hosts in collectives. Open MPI's messages over TCP
 * are copied once or twice more than the kernel does, and wait for the receiver to answer if they
 * are long; here what arrives is read to where it belongs, and a message that finds nobody who
 * wants it stays in the kernel. So does all that moves: nothing but the calls below touches memory.
 *
 * A connection carries one kind of traffic between two ranks: lengths, and behind each its bytes.
 * Its messages are received in the order in which they were sent. One whose other end has gone
 * brings nothing any more: who that is, others find out. Used by one thread at a time.
 */
class Streams {
 public:
  struct Connection {
    int rank;  ///< at the other end
    Wire::Traffic traffic;
    Socket socket;
  };
  explicit Streams(std::vector<Connection> connections);

  /** Whether there is a connection for that: if not, MPI carries it, at both ends. */
  bool reaches(int rank, Wire::Traffic traffic) const { return find(rank, traffic) != nullptr; }
  /** The kinds that have connections: of which little is under way, as all wait for each other. */
  static constexpr bool carries(Wire::Traffic traffic) {
    return traffic == Wire::Traffic::collective || traffic == Wire::Traffic::ahead;
  }
  /** These are told from requests of MPI, which are addresses, by is_one(). */
  Wire::Posted send(const std::byte* data, std::int64_t bytes, int destination,
                    Wire::Traffic traffic);
  Wire::Posted receive(std::byte* data, std::int64_t bytes, int source, Wire::Traffic traffic);
  static bool is_one(Wire::Posted posted) { return (posted & 1U) != 0; }

  /** Moves what can be moved. Does not block. */
  void progress();
  /** Whether bytes of messages that had not ended have moved since it was last asked. From any
   * thread. */
  bool have_moved() { return moved_.exchange(false, std::memory_order_relaxed); }
  /** Whether `posted` has ended; then it is none any more. */
  bool take_ended(Wire::Posted posted);
  /** A receive for which nothing has come. */
  void withdraw(Wire::Posted receive);
  /** Nothing moves any more, and nobody's memory is touched. */
  void stop() noexcept { stopped_ = true; }
  /** A rank that has sent a longer message than was wanted, which ends its connection. */
  std::optional<int> mistaken() const { return mistaken_; }
  /** A rank with which messages have been waiting for kPatience at `now`, as their connection has
   * ended: a rank that has left or died is known otherwise by then. */
  std::optional<int> broken(std::chrono::steady_clock::time_point now);

 private:
  static constexpr std::int64_t kHeader =
      sizeof(std::int64_t);  // goes before a message: its length
  static constexpr int kNone = -1;
  static constexpr std::chrono::seconds kPatience{2};
  /** So much is read at once where a message begins. */
  static constexpr std::size_t kEarly = 4096;
  struct Message {
    std::byte* data = nullptr;
    std::int64_t length = 0;  ///< as it is sent
    std::int64_t bytes = 0;   ///< of a receive at most, until it has begun
    std::int64_t moved = 0;   ///< of a send with the length
    int next = kNone;
    bool begun = false;  ///< of a receive: the length has come
    bool ended = false;
  };
  /** Messages by number, in their order. */
  struct Queue {
    int first = kNone;
    int last = kNone;
  };
  struct Stream {
    explicit Stream(Connection given) : connection(std::move(given)), early(kEarly) {}
    Connection connection;
    Queue sends;
    Queue receives;
    std::vector<std::byte> early;  ///< what was read along with lengths: `used` to `come`
    std::int64_t used = 0;
    std::int64_t come = 0;
    bool takes = true;   ///< what is sent, as far as is known
    bool brings = true;  ///< something
    /** Since when messages wait for what has ended. */
    std::optional<std::chrono::steady_clock::time_point> waits_since{};

    bool is_open() const { return takes && brings; }
    bool waits() const {
      return (!takes && sends.first != kNone) || (!brings && receives.first != kNone);
    }
  };

  const Stream* find(int rank, Wire::Traffic traffic) const;
  Stream& stream_to(int rank, Wire::Traffic traffic);
  Message& at(int number) { return messages_[static_cast<std::size_t>(number)]; }
  int add(Queue& queue, std::byte* data, std::int64_t bytes);
  void end_first(Queue& queue);
  void push(Stream& stream);
  void pull(Stream& stream);
  bool begin(Stream& stream, Message& message);
  std::int64_t read(Stream& stream, std::byte* to, std::int64_t bytes);

  std::vector<Stream> streams_;
  std::vector<std::array<int, 2>> numbers_;  // of streams, by rank and traffic
  std::vector<Message> messages_;
  std::vector<int> free_;  // of these
  std::optional<int> mistaken_;
  bool stopped_ = false;
  std::atomic<bool> moved_ = false;
};

}  // namespace tutti::mpi
