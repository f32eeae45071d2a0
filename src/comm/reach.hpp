// For whom a rank waits in the end: what ranks of a host pass on to find out that they wait in a
// circle, through communicators of which none has all of them.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/recycled.hpp"
#include "comm/own_waits.hpp"

namespace tutti {

/**
 * The ranks that one waits for, those that they wait for, and so on, in shared memory. Whoever
 * waits copies what those show whom it waits for: so what a rank shows reaches itself where ranks
 * wait in a circle (path pushing: Obermarck, ACM TODS 7:2, 1982). What is copied keeps its time,
 * and what is old is left out: a rank that has stopped, and shows that it waits, closes no circle
 * for long.
 */
class Reach {
 public:
  using Clock = std::chrono::steady_clock;  // the same in all processes of a host

  struct Entry {
    ProcessNumber rank;
    Clock::time_point seen;  ///< when somebody waited for it
  };
  using Entries = RecycledVector<Entry>;

  static constexpr std::chrono::milliseconds kFreshFor{600};

  /** By this rank alone, one thread at a time. What does not fit is left out. */
  void show(const Entries& entries) {
    const std::size_t count = std::min(entries.size(), kMost);
    for (std::size_t i = 0; i < count; ++i) {
      places_[i].rank.store(entries[i].rank, std::memory_order_relaxed);
      places_[i].seen.store(entries[i].seen.time_since_epoch().count(), std::memory_order_relaxed);
    }
    count_.store(static_cast<std::uint32_t>(count), std::memory_order_release);
  }

  /** Adds what it shows, as far as it is fresh, to `entries`. May see some of an older state. */
  void add_to(Entries& entries, Clock::time_point now) const {
    const std::size_t count = std::min<std::size_t>(count_.load(std::memory_order_acquire), kMost);
    for (std::size_t i = 0; i < count; ++i) {
      const Clock::time_point seen(
          Clock::duration(places_[i].seen.load(std::memory_order_relaxed)));
      if (now - seen < kFreshFor) {
        merge({places_[i].rank.load(std::memory_order_relaxed), seen}, entries);
      }
    }
  }

  /** Adds `entry`, or its time, if it is later than what is there. */
  static void merge(const Entry& entry, Entries& entries) {
    const auto known = std::find_if(entries.begin(), entries.end(),
                                    [&](const Entry& one) { return one.rank == entry.rank; });
    if (known == entries.end()) {
      entries.push_back(entry);
    } else {
      known->seen = std::max(known->seen, entry.seen);
    }
  }

 private:
  static constexpr std::size_t kMost = 63;

  struct Place {
    std::atomic<ProcessNumber> rank;
    std::atomic<Clock::rep> seen;
  };

  std::atomic<std::uint32_t> count_;
  std::array<Place, kMost> places_;
};

/** Whether a wait has led back to its own rank for so long that it is no accident. */
class CircleWatch {
 public:
  /** `ranks`: those by whom the wait leads back now. */
  void look(std::vector<int> ranks) {
    const auto now = Reach::Clock::now();
    if (ranks.empty() || !since_) since_ = now;
    if (now - *since_ < kCertain) return;
    ranks_ = std::move(ranks);
    seen_ = now;
  }
  /** Those of the circle that was there a moment ago: somebody may have broken it since, by giving
   * up. Otherwise empty. */
  std::vector<int> ranks() const {
    return Reach::Clock::now() - seen_ < kMoment ? ranks_ : std::vector<int>();
  }

 private:
  static constexpr std::chrono::milliseconds kCertain = Reach::kFreshFor * 4 / 3;
  static constexpr std::chrono::milliseconds kMoment{1000};

  std::optional<Reach::Clock::time_point> since_;
  Reach::Clock::time_point seen_{};
  std::vector<int> ranks_;
};

}  // namespace tutti
