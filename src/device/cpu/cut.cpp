// Selection by histograms, each finer than the one before.
#include "device/cpu/cut.hpp"

#include <array>

namespace tutti::cpu {
namespace {

constexpr int kBinBits = 11;
constexpr std::int32_t kBins = 1 << kBinBits;
// Counters of the same bin that take turns: one alone would wait for its own last increment.
constexpr std::size_t kTurns = 4;

/** Bin 0 is below the range, the last one above. */
using Counts = std::array<std::uint32_t, kBins + 2>;

/** Counts magnitudes by bins of 2^shift from `low` on. */
Counts count_bins(std::span<const float> values, std::uint32_t low, int shift) {
  std::array<Counts, kTurns> turns{};
  const auto count = [&](Counts& counts, float value) {
    const auto offset = static_cast<std::int32_t>(magnitude_of(value) - low);
    const std::int32_t bin = std::clamp(offset >> shift, -1, kBins) + 1;
    ++counts[static_cast<std::size_t>(bin)];
  };
  std::size_t i = 0;
  for (; i + kTurns <= values.size(); i += kTurns) {
    for (std::size_t turn = 0; turn < kTurns; ++turn) count(turns[turn], values[i + turn]);
  }
  for (; i < values.size(); ++i) count(turns[0], values[i]);
  for (std::size_t turn = 1; turn < kTurns; ++turn) {
    for (std::size_t bin = 0; bin < turns[0].size(); ++bin) turns[0][bin] += turns[turn][bin];
  }
  return turns[0];
}

}  // namespace

/**
 * Counts the magnitudes by bins of equal width over [low, high], and goes on with the bin in which
 * the wanted one lies: at most four passes over the values, whatever they are. What lies outside
 * of the range is counted too, which tells of a wrong guess.
 */
Cut find_cut(std::span<const float> values, std::int64_t rank, std::uint32_t low,
             std::uint32_t high) {
  for (;;) {
    const int width = static_cast<int>(std::bit_width(high - low));
    const int shift = std::max(width - kBinBits, 0);
    const Counts counts = count_bins(values, low, shift);
    std::int64_t above = 0;
    std::size_t bin = kBins + 1;
    while (above + counts[bin] <= rank) above += counts[bin--];
    if (bin == kBins + 1) {
      low += static_cast<std::uint32_t>(kBins) << shift;
      high = kNotFinite;
    } else if (bin == 0) {
      high = low - 1;
      low = 0;
    } else {
      low += static_cast<std::uint32_t>(bin - 1) << shift;
      if (shift == 0) return {low, above};
      high = low + (std::uint32_t{1} << shift) - 1;
    }
  }
}

}  // namespace tutti::cpu
