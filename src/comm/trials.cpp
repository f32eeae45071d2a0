// Tries the ways and keeps the cheapest.
#include "comm/trials.hpp"

#include <algorithm>

namespace tutti {

Trials::Trials(int ways, int samples, int warm_up)
    : costs_(static_cast<std::size_t>(ways)),
      samples_(samples),
      uncounted_(ways * warm_up),
      trials_(ways > 1 ? ways * (samples + warm_up) : 0) {
  if (ways == 1) return;
  // Later calls need no memory.
  for (auto& costs : costs_) costs.reserve(static_cast<std::size_t>(samples));
}

Trials::Trial Trials::next() {
  if (issued_ >= trials_) return {best_};
  const int number = issued_++;
  return {way_of(number), number};
}

void Trials::learn(int number, std::uint32_t cost) {
  if (number >= uncounted_) costs_[static_cast<std::size_t>(way_of(number))].push_back(cost);
  if (++learned_ == trials_) choose();
}

void Trials::choose() {
  std::uint32_t least = UINT32_MAX;
  for (std::size_t way = 0; way < costs_.size(); ++way) {
    const auto middle = costs_[way].begin() + samples_ / 2;
    std::nth_element(costs_[way].begin(), middle, costs_[way].end());
    if (*middle >= least) continue;
    least = *middle;
    best_ = static_cast<int>(way);
  }
}

}  // namespace tutti
