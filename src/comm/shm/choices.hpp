// How collectives move their data, and the choice between the ways by what they cost.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "comm/trials.hpp"

namespace tutti::shm {

/** The kinds of tasks among the ranks of a host; see Task. */
enum class TaskKind : std::uint8_t {
  meet,
  all_reduce,
  reduce,
  reduce_scatter,
  spread,
  gather,
  all_gather,
  all_to_all,
};
inline constexpr std::size_t kTaskKinds = 8;

/** One way to move the data of a task; see Local. All ways give the same bits. */
struct Way {
  enum class Kind : std::uint8_t { one_shot, direct, staged, single_copy };
  Kind kind = Kind::staged;
  bool streamed = false;   ///< what others will read is written past the caches
  std::int64_t piece = 0;  ///< bytes, where the data go in pieces

  friend bool operator==(const Way&, const Way&) = default;
};
inline constexpr std::size_t kWayKinds = 4;

/** "one shot", "direct", "staged" or "single copy". */
constexpr const char* name_of(Way::Kind kind) {
  constexpr std::array<const char*, 4> kNames{"one shot", "direct", "staged", "single copy"};
  return kNames[static_cast<std::size_t>(kind)];
}

/** Trials of ways for one kind of message. */
class Chooser {
 public:
  static constexpr int kSettled = Trials::kSettled;
  struct Trial {
    Way way;
    int number = kSettled;  ///< to learn() the cost of; kSettled if that is not wanted
  };

  Chooser(std::vector<Way> ways, int samples)
      : ways_(std::move(ways)), trials_(static_cast<int>(ways_.size()), samples) {}

  Trial next() {
    const Trials::Trial trial = trials_.next();
    return {ways_[static_cast<std::size_t>(trial.way)], trial.number};
  }
  void learn(int number, std::uint32_t cost) { trials_.learn(number, cost); }

 private:
  std::vector<Way> ways_;
  Trials trials_;
};

/**
 * The choosers of one communicator, by kind of task, size (in powers of two) and what the arguments
 * allow. The cost of a trial is that on the slowest rank: each rank notes its own, tells it with
 * the next task, and when all have come all learn the slowest.
 */
class Choices {
 public:
  static constexpr std::int64_t kOneShot = std::int64_t{64} * 1024;  ///< bytes, at most
  static constexpr std::int64_t kPiece = std::int64_t{256} * 1024;
  static constexpr std::int64_t kBrief = 1024;  ///< bytes, at most
  static constexpr Way kPlainShot{Way::Kind::one_shot, false, 0};

  /** What the arguments of a task and the host allow; the same on all ranks. */
  struct Allowed {
    bool direct = false;       ///< to reach the arguments in place
    bool single_copy = false;  ///< to read them from the other processes
  };
  struct Choice {
    Way way;
    Chooser* chooser = nullptr;  ///< null if the cost is not wanted
    int trial = Chooser::kSettled;
  };

  /** From now on this way is chosen wherever it is possible; for tests. */
  void force(Way way) { forced_ = way; }

  /** Whether a message goes by one shot with plain stores, untried: what else there is needs a
   * second crossing between the cores, or one to memory. */
  bool brief(std::int64_t bytes) const {
    return bytes <= kBrief && (!forced_ || *forced_ == kPlainShot);
  }
  /** Before the ranks have met, of a longer message of up to kOneShot bytes: whether it goes by one
   * shot is decided by what was allowed for the last one like it. */
  Choice before(TaskKind kind, std::int64_t bytes);
  /** Of any message, now that it is known what is allowed; keeps to `early`, what before() said
   * if it was asked, if it can. */
  Choice after(TaskKind kind, std::int64_t bytes, Allowed allowed, const Choice* early);

  /** What the trial that `choice` was has cost this rank, in nanoseconds. */
  void note(const Choice& choice, std::uint32_t cost);
  /** The cost to tell the other ranks; 0 if there was no trial. */
  std::uint32_t noted() const { return cost_; }
  /** What it cost the slowest rank. */
  void learn(std::uint32_t slowest);

 private:
  static constexpr std::size_t kAllowances = 4;

  Chooser& chooser(TaskKind kind, std::int64_t bytes, Allowed allowed);

  /** By kind and allowance, for all classes as soon as one is needed: messages of sizes that
   * come later need no memory. */
  std::vector<std::vector<Chooser>> choosers_ =
      std::vector<std::vector<Chooser>>(kTaskKinds * kAllowances);
  std::array<std::array<Allowed, kSizeClasses>, kTaskKinds> expected_{};
  std::optional<Way> forced_;
  Choice pending_;
  std::uint32_t cost_ = 0;
};

}  // namespace tutti::shm
