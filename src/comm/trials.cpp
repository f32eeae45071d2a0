// Tries the ways and keeps the cheapest.
#include "comm/trials.hpp"

#include <algorithm>
#include <bit>

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

/** Rounds whose number has an odd number of ones are reversed (the Thue-Morse sequence), which
 * has no period, of two or four calls least of all. */
int Trials::way_of(int number) const {
  const int ways = static_cast<int>(costs_.size());
  const auto round = static_cast<unsigned>(number / ways);
  const int place = number % ways;
  return std::popcount(round) % 2 == 0 ? place : ways - 1 - place;
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
