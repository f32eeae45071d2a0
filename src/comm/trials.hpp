// Which of several ways to do something costs least: found out by trying them.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti {

/**
 * Has ways tried a few times each, and then keeps the one whose median cost was lowest. A round
 * tries each of them once, some rounds in reverse, so that calls that differ in turns, as a step's
 * buckets do, go each way alike. Who asks and learns in the same order, and learns the same costs,
 * is told the same.
 */
class Trials {
 public:
  static constexpr int kSettled = -1;
  struct Trial {
    int way;                ///< 0 to the number of ways - 1
    int number = kSettled;  ///< to learn() the cost of; kSettled if that is not wanted
  };

  /** `samples`: costs of each way that count; `warm_up` before them do not. Of one way there is
   * nothing to try. */
  Trials(int ways, int samples, int warm_up = 1);

  /** Which way the next call is to go, and whether its cost is wanted. */
  Trial next();
  /** The cost of trial `number`, in whatever unit. */
  void learn(int number, std::uint32_t cost);
  /** Whether all costs are known, those that do not count, too. */
  bool are_over() const { return learned_ == trials_; }
  /** Before they are over, the first. */
  int best() const { return best_; }
  /** From now on way `way` is the best, as others may have found another one. */
  void settle(int way) { best_ = way; }

 private:
  int way_of(int number) const;
  void choose();

  std::vector<std::vector<std::uint32_t>> costs_;  // by way
  int samples_;
  int uncounted_;
  int trials_;
  int issued_ = 0;
  int learned_ = 0;
  int best_ = 0;
};

/** Messages of one class of sizes are tried together. A class is the exponent of the least power of
 * two that is no less than `bytes`: 10 of 513 to 1024 bytes, say, and 0 of one or none.
 */
constexpr std::size_t size_class_of(std::int64_t bytes) {
  return bytes == 0
             ? 0
             : static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(bytes) - 1));
}
inline constexpr std::size_t kSizeClasses = 48;

/** How many costs of each way count, of messages of up to `bytes` bytes: of large ones fewer. */
constexpr int samples_of(std::int64_t bytes) {
  constexpr std::int64_t kLarge = std::int64_t{8} * 1024 * 1024;
  return bytes < kLarge ? 7 : 3;
}

}  // namespace tutti
