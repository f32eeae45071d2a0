// Decides by age, score and number which rows go.
#include "ps/table/eviction.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "ps/table/index.hpp"

namespace tutti::ps {
namespace {

/** The part of all hashes that follows what was looked at after the step before, so that all are
 * once in `steps` steps. */
Interval due(std::int64_t step, std::int64_t steps) {
  __extension__ using Wide = unsigned __int128;
  const auto begin_of = [&](std::int64_t at) {
    return (static_cast<Wide>(static_cast<std::uint64_t>(at)) << 64U) /
           static_cast<std::uint64_t>(steps);
  };
  const std::int64_t at = step % steps;
  return {static_cast<std::uint64_t>(begin_of(at)),
          static_cast<std::uint64_t>(begin_of(at + 1) - 1)};
}

}  // namespace

EvictionPolicy::EvictionPolicy(const TableSpec& spec, std::int64_t most_rows)
    : eviction_(spec.eviction), most_rows_(spec.eviction.max_bytes > 0 ? most_rows : 0) {
  if (const auto* entry = std::get_if<AdmitShowClick>(&spec.entry)) score_ = *entry;
}

bool EvictionPolicy::keeps_history(const TableSpec& spec) {
  return std::holds_alternative<AdmitShowClick>(spec.entry) || spec.eviction.max_age > 0 ||
         spec.eviction.max_bytes > 0 || spec.eviction.min_score > 0;
}

Interval EvictionPolicy::ages_due(std::int64_t step) const {
  if (eviction_.max_age == 0) return {};
  return due(step, steps_of_slices(eviction_.max_age));
}

bool EvictionPolicy::too_old(const RowHistory& row, std::int64_t step) const {
  return step - row.last_step > eviction_.max_age;
}

Interval EvictionPolicy::scores_due(std::int64_t step) const {
  return eviction_.min_score > 0 ? due(step, eviction_.every) : Interval{};
}

bool EvictionPolicy::fade(RowHistory& row) const {
  row.shows *= eviction_.decay;
  row.clicks *= eviction_.decay;
  return score_.show_coefficient * row.shows + score_.click_coefficient * row.clicks <
         eviction_.min_score;
}

std::int64_t EvictionPolicy::surplus_of(int shard, std::int64_t rows, std::int64_t step) const {
  const std::int64_t share = most_rows_ / kIndexShards;
  const std::int64_t spare = share / 16;
  const std::int64_t early = shard % kTurns == step % kTurns ? spare / 2 : 0;
  return surplus(rows, share - early, spare - early);
}

void choose_least_recent(std::vector<Candidate>& rows, std::int64_t surplus) {
  if (surplus < std::ssize(rows)) {
    const auto left = rows.begin() + surplus;
    std::ranges::nth_element(
        rows, left, {}, [](const Candidate& row) { return std::pair(row.last_step, row.within); });
    rows.erase(left, rows.end());
  }
  std::ranges::sort(rows, {}, &Candidate::within);
}

}  // namespace tutti::ps
