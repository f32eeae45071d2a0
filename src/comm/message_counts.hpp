// How many messages a rank has sent to each other one, and received from it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti {

/**
 * Counted for each wait that a rank may be in. Whoever leaves tells the others how many messages it
 * has sent them: so they know whether something is still on its way, however slow that is, and
 * whatever overtook it. Safe from any thread.
 */
class MessageCounts {
 public:
  /** Whose wait a message can end: see Wire::Side. */
  static constexpr std::size_t kSides = 3;
  /** Messages to one rank; they may overflow, as only their difference matters. */
  using Sent = std::array<std::uint32_t, kSides>;

  explicit MessageCounts(std::size_t ranks) : ranks_(ranks) {}

  void count_sent(int destination, std::size_t side) { add(of(destination).sent[side]); }
  /** One that was counted, and has been given up: it may arrive all the same. */
  void discount_sent(int destination, std::size_t side) {
    of(destination).sent[side].fetch_sub(1, std::memory_order_relaxed);
  }
  void count_received(int source, std::size_t side) { add(of(source).received[side]); }

  Sent sent_to(int destination) const {
    Sent sent;
    for (std::size_t side = 0; side < kSides; ++side) sent[side] = of(destination).sent[side];
    return sent;
  }
  /** Whether all of `sent` have come that can end a wait of `side`. */
  bool has_all(int source, const Sent& sent, std::size_t side) const {
    return static_cast<std::int32_t>(of(source).received[side] - sent[side]) >= 0;
  }

 private:
  using Count = std::atomic<std::uint32_t>;
  struct Counts {
    std::array<Count, kSides> sent{};
    std::array<Count, kSides> received{};
  };

  static void add(Count& count) { count.fetch_add(1, std::memory_order_relaxed); }
  Counts& of(int rank) { return ranks_[static_cast<std::size_t>(rank)]; }
  const Counts& of(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  std::vector<Counts> ranks_;
};

}  // namespace tutti
