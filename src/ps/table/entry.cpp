// Decides which ids get a row: all, some by a hash, or those of which enough has been counted.
#include "ps/table/entry.hpp"

#include <variant>

#include "ps/table/place.hpp"

namespace tutti::ps {
namespace {

/** What a push adds to an id's sum, and the sum that admits it. */
struct Threshold {
  double for_push = 0;
  double for_show = 0;
  double for_click = 0;
  double admits_at = 0;

  bool counts() const { return admits_at > 0; }
};

Threshold threshold_of(const AdmitAll& /*entry*/) { return {}; }
Threshold threshold_of(const AdmitProbability& /*entry*/) { return {}; }
Threshold threshold_of(const AdmitCount& entry) {
  // The first push is counted nowhere.
  if (entry.count <= 1) return {};
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

double added_by(const Threshold& threshold, const RowUpdates& updates, std::size_t i) {
  double sum = threshold.for_push;
  if (updates.shows != nullptr) sum += threshold.for_show * updates.shows[i];
  if (updates.clicks != nullptr) sum += threshold.for_click * updates.clicks[i];
  return sum > 0 ? sum : 0;  // what is no number is nothing
}

}  // namespace

Admission::Admission(const TableIdentity& identity)
    : entry_(identity.spec.entry), seed_(identity.seed) {
  if (threshold_of(entry_).counts()) counts_ = std::make_unique<EntryCounts>(identity);
}

bool Admission::admits_all() const {
  const auto* chance = std::get_if<AdmitProbability>(&entry_);
  return chance != nullptr ? chance->probability >= 1 : !counts_;
}

const std::vector<std::size_t>& Admission::choose(const RowUpdates& updates,
                                                  std::span<const std::size_t> absent,
                                                  std::int64_t step) {
  chosen_.clear();
  if (const auto* chance = std::get_if<AdmitProbability>(&entry_)) {
    for (const std::size_t i : absent) {
      const std::uint64_t hash = mix64(seed_ ^ mix64(static_cast<std::uint64_t>(updates.ids[i])));
      if (static_cast<double>(hash >> 11U) * 0x1p-53 < chance->probability) chosen_.push_back(i);
    }
    return chosen_;
  }
  ids_.clear();
  for (const std::size_t i : absent) ids_.push_back(updates.ids[i]);
  counts_->find(ids_, step);
  const Threshold threshold = threshold_of(entry_);
  for (std::size_t k = 0; k < absent.size(); ++k) {
    double& sum = counts_->sum(k);
    sum += added_by(threshold, updates, absent[k]);
    if (sum < threshold.admits_at) continue;
    chosen_.push_back(absent[k]);
    sum = 0;
  }
  counts_->make_room();
  return chosen_;
}

void Admission::count() {
  if (counts_) counts_->keep();
}

}  // namespace tutti::ps
