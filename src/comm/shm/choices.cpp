// Tries the ways and keeps the cheapest.
#include "comm/shm/choices.hpp"

#include <algorithm>
#include <bit>
#include <utility>

namespace tutti::shm {
namespace {

constexpr std::int64_t kFewestStreamed = 256;                   // bytes
constexpr std::int64_t kFewestStaged = std::int64_t{4} * 1024;  // instead of one shot
constexpr std::int64_t kFewestSingleCopy = std::int64_t{128} * 1024;
constexpr std::int64_t kLarge = std::int64_t{8} * 1024 * 1024;

/** The power of two that is no less than `bytes`. */
std::size_t class_of(std::int64_t bytes) {
  if (bytes == 0) return 0;
  return static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(bytes) - 1));
}

/** The ways between which there is a choice, the likeliest first. */
std::vector<Way> ways_of(TaskKind kind, std::int64_t bytes, Choices::Allowed allowed) {
  constexpr std::int64_t kPiece = Choices::kPiece;
  std::vector<Way> ways;
  const auto add = [&](Way::Kind way, std::int64_t piece) {
    ways.push_back({way, false, piece});
    if (bytes >= kFewestStreamed) ways.push_back({way, true, piece});
  };
  if (bytes <= Choices::kOneShot) add(Way::Kind::one_shot, 0);
  if (allowed.direct) {
    add(Way::Kind::direct, 0);
    // Others move less by it too, but from cache to cache, where it may be further than to memory.
    if (kind == TaskKind::all_reduce) return ways;
  }
  if (bytes >= kFewestStaged) add(Way::Kind::staged, kPiece);
  if (allowed.direct) return ways;
  if (bytes > kPiece) add(Way::Kind::staged, kPiece / 2);
  if (allowed.single_copy && bytes >= kFewestSingleCopy) {
    ways.push_back({Way::Kind::single_copy, false, kPiece});
  }
  return ways;
}

bool possible(const Way& way, std::int64_t bytes, Choices::Allowed allowed) {
  switch (way.kind) {
    case Way::Kind::one_shot:
      return bytes <= Choices::kOneShot;
    case Way::Kind::direct:
      return allowed.direct;
    case Way::Kind::single_copy:
      return allowed.single_copy;
    case Way::Kind::staged:
      break;
  }
  return true;
}

}  // namespace

Chooser::Chooser(std::vector<Way> ways, int samples) : samples_(samples), best_(ways.front()) {
  if (ways.size() == 1) return;  // nothing to try
  for (const Way& way : ways) {
    candidates_.push_back({way, {}});
    candidates_.back().costs.reserve(static_cast<std::size_t>(samples));  // later calls need none
  }
}

Chooser::Trial Chooser::next() {
  const int count = static_cast<int>(candidates_.size());
  if (issued_ >= count * (samples_ + 1)) return {best_};
  const int number = issued_++;
  return {candidates_[static_cast<std::size_t>(number % count)].way, number};
}

void Chooser::learn(int number, std::uint32_t cost) {
  const int count = static_cast<int>(candidates_.size());
  if (number >= count) candidates_[static_cast<std::size_t>(number % count)].costs.push_back(cost);
  if (++learned_ == count * (samples_ + 1)) settle();
}

void Chooser::settle() {
  std::uint32_t least = UINT32_MAX;
  for (Candidate& candidate : candidates_) {
    const auto middle = candidate.costs.begin() + samples_ / 2;
    std::nth_element(candidate.costs.begin(), middle, candidate.costs.end());
    if (*middle < least) {
      least = *middle;
      best_ = candidate.way;
    }
  }
}

Chooser& Choices::chooser(TaskKind kind, std::int64_t bytes, Allowed allowed) {
  const std::size_t allowance = (allowed.direct ? 1U : 0U) + (allowed.single_copy ? 2U : 0U);
  auto& family = choosers_[static_cast<std::size_t>(kind) * kAllowances + allowance];
  if (family.empty()) {
    family.reserve(kClasses);
    for (std::size_t power = 0; power < kClasses; ++power) {
      // By the largest size of the class, or the ways would depend on the first that comes.
      const std::int64_t most = std::int64_t{1} << power;
      family.emplace_back(ways_of(kind, most, allowed), most < kLarge ? 7 : 3);
    }
  }
  return family[class_of(bytes)];
}

Choices::Choice Choices::before(TaskKind kind, std::int64_t bytes) {
  if (forced_) return {*forced_, nullptr, Chooser::kSettled};
  const Allowed expected = expected_[static_cast<std::size_t>(kind)][class_of(bytes)];
  Chooser& chosen = chooser(kind, bytes, expected);
  const Chooser::Trial trial = chosen.next();
  return {trial.way, &chosen, trial.number};
}

Choices::Choice Choices::after(TaskKind kind, std::int64_t bytes, Allowed allowed,
                               const Choice* early) {
  if (early != nullptr) {
    expected_[static_cast<std::size_t>(kind)][class_of(bytes)] = allowed;
    chooser(kind, bytes, allowed);  // the next call needs no memory
    if (possible(early->way, bytes, allowed)) return *early;
    if (early->trial != Chooser::kSettled) early->chooser->learn(early->trial, UINT32_MAX);
  } else if (forced_) {
    if (possible(*forced_, bytes, allowed)) return {*forced_, nullptr, Chooser::kSettled};
  } else {
    Chooser& chosen = chooser(kind, bytes, allowed);
    const Chooser::Trial trial = chosen.next();
    return {trial.way, &chosen, trial.number};
  }
  return {Way{allowed.direct ? Way::Kind::direct : Way::Kind::staged, false, kPiece}, nullptr,
          Chooser::kSettled};
}

void Choices::note(const Choice& choice, std::uint32_t cost) {
  pending_ = choice;
  cost_ = cost;
}

void Choices::learn(std::uint32_t slowest) {
  if (pending_.chooser != nullptr) pending_.chooser->learn(pending_.trial, slowest);
  pending_ = {};
  cost_ = 0;
}

}  // namespace tutti::shm
