// Selection by histograms, each finer than the one before.
#include "communicator/cpu/cut.hpp"

#include <array>

namespace tutti::cpu {
namespace {

constexpr int kBinBits = 11;
constexpr std::int32_t kBins = 1 << kBinBits;

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
    std::array<std::int64_t, kBins + 2> counts{};  // bin 0 is below the range, the last above
    for (const float value : values) {
      const auto offset = static_cast<std::int32_t>(magnitude_of(value) - low);
      ++counts[static_cast<std::size_t>(std::clamp(offset >> shift, -1, kBins) + 1)];
    }
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
