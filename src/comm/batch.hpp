// Messages over a Wire that are waited for together.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <memory_resource>
#include <utility>
#include <vector>

#include "base/recycled.hpp"
#include "comm/wire.hpp"

namespace tutti {

/**
 * Messages of any size, which travel in pieces. Leaving it by an exception before wait() has ended
 * fails the communicator: see Wire::abandon().
 */
class Batch {
 public:
  Batch(Wire& wire, Wire::Traffic traffic) : wire_(wire), traffic_(traffic) {
    posted_.reserve(kFew);
    peers_.reserve(kFew);
    pieces_.reserve(kFew);
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch();
  /** Messages of more than Wire::longest() bytes travel in pieces, of which a few are under way at
   * a time; a batch has one of them for each peer and direction. Nothing travels for 0 bytes.
   * Memory stays put until wait() has ended. */
  void send(const void* data, std::int64_t bytes, int destination);
  void recv(void* data, std::int64_t bytes, int source);
  /** Receives a message from `source` that is sent on to `destination` as it comes: only where
   * Wire::passes_on(). */
  void pass_on(void* data, std::int64_t bytes, int source, int destination);
  /** Takes back what was to come from `source`, which has sent nothing. */
  void withdraw(int source);
  /** Shares memory of messages, besides what it shares already: it lives on if they are abandoned.
   */
  void keep(std::shared_ptr<const void> memory) { kept_.push_back(std::move(memory)); }
  /** Moves what can be moved now; whether that was anything. Does not block. */
  bool progress() { return move() != Moved::nothing; }
  bool done() const { return posted_.empty(); }
  /** Blocks until all are done. The deadline starts anew with every piece, or part of a long one,
   * that arrives or leaves.
   * PeerLost: see Wire::Lookout; a MismatchError of another call only if something is left, one
   * that this rank has found in any case. */
  void wait() { wait(wire_.timeout()); }
  /** With another deadline than the wire's. */
  void wait(std::chrono::milliseconds timeout);
  /** Told of whom a piece has been received; may post more to this batch. Whether it was the last
   * that is waited for. */
  using Received = std::function<bool(int source)>;
  /** wait(), but no longer than until `received`, which hears of each piece meanwhile, says so. */
  void wait_until(const Received& received);
  /** With whom messages are under way, in ascending order. */
  RecycledVector<int> awaited() const;
  /** From whom something was received last. */
  int last_source() const { return last_source_; }

 private:
  /** What is to be done when a piece has ended. */
  struct Piece {
    bool receives = false;
    std::int32_t message = -1;  ///< its number, if it has more pieces than are under way
  };
  /** What is left of a message. */
  struct Rest {
    std::byte* data = nullptr;
    std::int64_t bytes = 0;
  };
  Piece piece_of(std::int64_t bytes, int peer, bool receives);
  /** Posts the next pieces of a message, at most `pieces`. */
  void post(Rest rest, int peer, Piece piece, std::int64_t pieces);
  void wait_for_all(std::chrono::milliseconds timeout);
  /** Whether there is nothing more to wait for. */
  bool is_over() const { return done() || is_enough_; }
  /** Whether all have come, whatever has failed. */
  bool has_ended();
  enum class Moved { nothing, parts, pieces };
  Moved move();
  /** Takes out the pieces that have ended, and posts what comes behind them. */
  void go_on();
  Wire::Side side() const;

  /** So many messages under way need no other memory. */
  static constexpr std::size_t kFew = 8;
  static constexpr std::size_t kRoom = kFew * (sizeof(Wire::Posted) + sizeof(int) + sizeof(Piece));

  Wire& wire_;
  Wire::Traffic traffic_;
  int last_source_ = 0;
  const Received* received_ = nullptr;  // of a wait_until()
  bool is_enough_ = false;              // for that
  alignas(std::max_align_t) std::array<std::byte, kRoom> room_;
  std::pmr::monotonic_buffer_resource memory_{room_.data(), room_.size(), &recycled_memory()};
  std::pmr::vector<Wire::Posted> posted_{&memory_};
  std::pmr::vector<int> peers_{&memory_};     // of each
  std::pmr::vector<Piece> pieces_{&memory_};  // likewise
  RecycledVector<Rest> rests_;                // by the number of the message
  RecycledVector<std::shared_ptr<const void>> kept_;
};

}  // namespace tutti
