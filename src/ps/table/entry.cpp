// Decides which ids get a row; counts pushes of those that have none in a sketch.
#include "ps/table/entry.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "base/refuse.hpp"
#include "ps/table/place.hpp"

namespace tutti::ps {
namespace {

constexpr std::size_t kRows = 4;
constexpr std::size_t kFirstWidth = 4096;
constexpr int kLevels = 5;  // 43 MiB in all

constexpr std::size_t width_of(int level) {
  return kFirstWidth << (2U * static_cast<unsigned>(level));
}

/** Cells of the levels before this one. */
constexpr std::size_t offset_of(int level) {
  std::size_t cells = 0;
  for (int before = 0; before < level; ++before) cells += kRows * width_of(before);
  return cells;
}

/** What a push adds to an id's sum, and the sum that admits it. */
struct Threshold {
  double for_push = 0;
  double for_show = 0;
  double for_click = 0;
  double admits_at = 0;
};

Threshold threshold_of(const AdmitAll& /*entry*/) { return {}; }
Threshold threshold_of(const AdmitProbability& /*entry*/) { return {}; }
Threshold threshold_of(const AdmitCount& entry) {
  return {.for_push = 1, .admits_at = static_cast<double>(entry.count)};
}
Threshold threshold_of(const AdmitShowClick& entry) {
  return {.for_show = entry.show_coefficient,
          .for_click = entry.click_coefficient,
          .admits_at = entry.threshold};
}

Threshold threshold_of(const Entry& entry) {
  return std::visit([](const auto& kind) { return threshold_of(kind); }, entry);
}

}  // namespace

/**
 * Sums of ids in levels of kRows rows of cells: an id has a cell in each row, and what it has in a
 * level is at most the least of these. That one alone is raised to what it must be (the
 * conservative update of Estan and Varghese 2002). Once a quarter of a level's width has come in
 * ids, a level four times as wide is added, and what comes from then on is counted there.
 */
class Admission::Sketch {
 public:
  Sketch() : cells_(offset_of(1)) {}

  /** Adds to an id's sum, which it returns. */
  double add(std::uint64_t hash, double amount) {
    double sum = 0;
    for (int level = 0; level < last_; ++level) sum += least(cells_of(level, hash));
    const Cells cells = cells_of(last_, hash);
    double here = least(cells);
    if (amount > 0) {
      if (here == 0) ++ids_;
      here += amount;
      for (double* cell : cells) *cell = std::max(*cell, here);
    }
    if (4 * ids_ > width_of(last_) && last_ + 1 < kLevels) {
      cells_.resize(offset_of(last_ + 2));
      ++last_;
      ids_ = 0;
    }
    return sum + here;
  }

  /** So many more ids take no memory. */
  void make_room(std::size_t ids) {
    int level = last_;
    for (ids += ids_; level + 1 < kLevels && 4 * ids > width_of(level); ++level) {
      ids -= width_of(level) / 4;
    }
    cells_.reserve(offset_of(level + 1));
  }

  std::span<const double> cells() const { return cells_; }

  void merge(std::span<const double> other) {
    cells_.resize(std::max(cells_.size(), other.size()));
    while (offset_of(last_ + 1) < cells_.size()) ++last_;
    for (std::size_t i = 0; i < other.size(); ++i) cells_[i] = std::max(cells_[i], other[i]);
    const std::span row = std::span(cells_).subspan(offset_of(last_), width_of(last_));
    ids_ = row.size() - static_cast<std::size_t>(std::count(row.begin(), row.end(), 0.0));
  }

 private:
  using Cells = std::array<double*, kRows>;

  static double least(const Cells& cells) {
    double sum = *cells[0];
    for (const double* cell : cells) sum = std::min(sum, *cell);
    return sum;
  }

  /** By the sum of one hash and multiples of another (Kirsch and Mitzenmacher 2006). */
  Cells cells_of(int level, std::uint64_t hash) {
    const std::uint64_t stride = mix64(hash) | 1U;
    const std::size_t width = width_of(level);
    double* row = &cells_[offset_of(level)];
    Cells cells{};
    for (double*& cell : cells) {
      cell = row + (hash & (width - 1));
      hash += stride;
      row += width;
    }
    return cells;
  }

  std::vector<double> cells_;
  int last_ = 0;         // the level that counts
  std::size_t ids_ = 0;  // about as many as were added to it
};

Admission::Admission(const Entry& entry, std::uint64_t seed) : entry_(entry), seed_(seed) {
  const bool counts =
      std::holds_alternative<AdmitCount>(entry_) || std::holds_alternative<AdmitShowClick>(entry_);
  if (counts && !admits_all()) sketch_ = std::make_unique<Sketch>();
}
Admission::Admission(Admission&&) noexcept = default;
Admission& Admission::operator=(Admission&&) noexcept = default;
Admission::~Admission() = default;

void Admission::make_room(std::int64_t pushes) {
  if (sketch_) sketch_->make_room(static_cast<std::size_t>(pushes));
}

bool Admission::admits(std::int64_t id, float shows, float clicks) {
  if (admits_all()) return true;
  const std::uint64_t hash = mix64(seed_ ^ mix64(static_cast<std::uint64_t>(id)));
  if (const auto* chance = std::get_if<AdmitProbability>(&entry_)) {
    return static_cast<double>(hash >> 11U) * 0x1p-53 < chance->probability;
  }
  const Threshold threshold = threshold_of(entry_);
  return sketch_->add(hash, threshold.for_push + threshold.for_show * shows +
                                threshold.for_click * clicks) >= threshold.admits_at;
}

bool Admission::admits_all() const {
  if (const auto* chance = std::get_if<AdmitProbability>(&entry_)) return chance->probability >= 1;
  if (const auto* count = std::get_if<AdmitCount>(&entry_)) return count->count <= 1;
  if (const auto* sum = std::get_if<AdmitShowClick>(&entry_)) return sum->threshold <= 0;
  return true;
}

std::span<const double> Admission::counts() const {
  return sketch_ ? sketch_->cells() : std::span<const double>();
}

std::int64_t Admission::bytes() const { return static_cast<std::int64_t>(counts().size_bytes()); }

bool Admission::are_counts(std::span<const double> counts) {
  int levels = 0;
  while (levels < kLevels && offset_of(levels) < counts.size()) ++levels;
  return counts.size() == offset_of(levels) &&
         std::all_of(counts.begin(), counts.end(),
                     [](double count) { return std::isfinite(count) && count >= 0; });
}

void Admission::merge(std::span<const double> counts) {
  if (!are_counts(counts)) refuse("these are not the counts of an entry rule");
  if (sketch_ && !counts.empty()) sketch_->merge(counts);
}

}  // namespace tutti::ps
