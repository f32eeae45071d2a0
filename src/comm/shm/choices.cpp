// Which ways there are, and which is to be tried.
#include "comm/shm/choices.hpp"

namespace tutti::shm {
namespace {

constexpr std::int64_t kFewestStreamed = 256;                   // bytes
constexpr std::int64_t kFewestStaged = std::int64_t{4} * 1024;  // instead of one shot
constexpr std::int64_t kFewestSingleCopy = std::int64_t{128} * 1024;

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

Chooser& Choices::chooser(TaskKind kind, std::int64_t bytes, Allowed allowed) {
  const std::size_t allowance = (allowed.direct ? 1U : 0U) + (allowed.single_copy ? 2U : 0U);
  auto& family = choosers_[static_cast<std::size_t>(kind) * kAllowances + allowance];
  if (family.empty()) {
    family.reserve(kSizeClasses);
    for (std::size_t power = 0; power < kSizeClasses; ++power) {
      // By the largest size of the class, or the ways would depend on the first that comes.
      const std::int64_t most = std::int64_t{1} << power;
      family.emplace_back(ways_of(kind, most, allowed), samples_of(most));
    }
  }
  return family[size_class_of(bytes)];
}

Choices::Choice Choices::before(TaskKind kind, std::int64_t bytes) {
  if (forced_) return {*forced_, nullptr, Chooser::kSettled};
  const Allowed expected = expected_[static_cast<std::size_t>(kind)][size_class_of(bytes)];
  Chooser& chosen = chooser(kind, bytes, expected);
  const Chooser::Trial trial = chosen.next();
  return {trial.way, &chosen, trial.number};
}

Choices::Choice Choices::after(TaskKind kind, std::int64_t bytes, Allowed allowed,
                               const Choice* early) {
  if (early != nullptr) {
    expected_[static_cast<std::size_t>(kind)][size_class_of(bytes)] = allowed;
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
