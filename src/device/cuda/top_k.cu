// Exact top-K in five launches, of which one reads everything:
//
//   bound     one block: a sample says what the k-th largest magnitude almost surely reaches
//   bracket   compacts what reaches the bound, the candidates, and counts their first digit
//   digit     twice: finds the k-th largest among the candidates, a digit at a time
//   compact   selects from the candidates
//
// What is equal to the bound is kept as far as it can be needed, so that vectors of few values,
// zeros above all, have no more candidates than others. Where they are equal to the k-th largest
// themselves, no digit is looked for. If the sample misled, the last three work on all elements.
#include <algorithm>
#include <cmath>

#include "device/cuda/compact.cuh"
#include "device/cuda/digits.cuh"
#include "device/cuda/sample.cuh"

namespace tutti::cuda {
namespace {

/** What a selection has on the GPU. All zero at first. */
struct State {
  Cut bracket;               ///< keeps the candidates
  Cut cut;                   ///< of what is selected
  Search search;             ///< for the k-th largest
  std::uint32_t candidates;  ///< how many there are, whether they had room or not
  std::uint32_t misled;      ///< 1: they are too few or too many
  std::uint32_t ended[kDigits];
  std::uint32_t bins[kDigits][kBins];
};

/** What the bound is to be. */
struct Sampling {
  const float* values;
  const float* addend;  ///< or null
  std::int64_t count;
  std::uint32_t rank;  ///< in the sample; 0: the bound is zero
  std::uint32_t k;
};

/** One block. Before that it makes `groups` groups from `memory` on, where the state is, zero. */
__global__ void __launch_bounds__(kSamplers)
    bound_kernel(const Sampling job, Group<float, kGroup>* memory, std::int64_t groups,
                 State* state) {
  for (std::int64_t i = threadIdx.x; i < groups; i += kSamplers) memory[i] = {};
  Cut cut{0, job.k};
  if (job.rank != 0) {
    std::uint32_t magnitudes[kOfSampler];
    take_sample(job.values, job.addend, job.count, magnitudes);
    cut = cut_at(magnitudes, job.rank);
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (job.count <= kSample) {  // the sample was everything
    state->cut = cut;
    return;
  }
  if (cut.ties != 0 && cut.ties != kAll) cut.ties = job.k;
  state->bracket = cut;
}

/** By the last block, in whose bins the candidates are counted: what is to be done with them. */
__device__ void judge(State* state, const Found& found, std::uint32_t k, std::uint32_t capacity,
                      const std::uint32_t* bins) {
  const Cut bracket = state->bracket;
  const std::uint32_t candidates = selected_of(found, bracket);
  const bool enough = candidates >= k;
  Search search{0, k, 0};
  Cut cut{};
  if (enough && bracket.bits == kInfinityBits) {
    search.digit = kDigits;
    cut = bracket;
  } else if (enough && found.above < k) {
    search.digit = kDigits;
    cut = {bracket.bits, k - found.above};
  } else if (enough) {
    search = pick_digit(bins, search);
  }
  if (threadIdx.x != 0) return;
  state->misled = enough && candidates <= capacity ? 0 : 1;
  state->search = search;
  state->cut = cut;
}

__global__ void __launch_bounds__(kThreads, tile::kBlocks)
    bracket_kernel(const __grid_constant__ Compaction job, State* state, std::uint32_t k) {
  __shared__ std::uint32_t bins[kBins];
  clear_bins(bins);
  compact_tiles(job, [&](std::uint32_t bits) { atomicAdd(bins + bin_of(bits, 0), 1U); });
  add_bins(bins, state->bins[0]);
  if (!ends_last(&state->ended[0], gridDim.x)) return;
  read_bins(state->bins[0], bins);
  const int last_tile = static_cast<int>((job.source.count - 1) / kChunk);
  judge(state, found_in_all(job.tiles, last_tile), k, job.selected.capacity, bins);
}

/**
 * Finds one more digit of the k-th largest magnitude, as number `round` of these kernels. If
 * `last`, it finds all that are left: more than one only where the candidates were too few, so that
 * their first digits say nothing. That needs a sample that misleads by more than chance does.
 */
__global__ void __launch_bounds__(kThreads)
    digit_kernel(const Source candidates, const Source all, State* state, int round, bool last) {
  constexpr std::int64_t kOfBlock = kThreads * kGroup;  // a group a thread, as far as blocks go
  const Source source = state->misled != 0 ? all : candidates;
  const std::int64_t most = (count_of(source) + kOfBlock - 1) / kOfBlock;
  const unsigned blocks = most < gridDim.x ? static_cast<unsigned>(most) : gridDim.x;
  if (blockIdx.x >= blocks) return;
  Search search = state->search;
  if (search.digit == kDigits) return;
  __shared__ std::uint32_t bins[kBins];
  clear_bins(bins);
  count_digits(source, search, bins, blockIdx.x, blocks);
  add_bins(bins, state->bins[round]);
  if (!ends_last(&state->ended[round], blocks)) return;
  read_bins(state->bins[round], bins);
  search = pick_digit(bins, search);
  while (last && search.digit < kDigits) {
    clear_bins(bins);
    count_digits(source, search, bins, 0, 1);
    __syncthreads();
    search = pick_digit(bins, search);
  }
  if (threadIdx.x != 0) return;
  state->search = search;
  state->cut = cut_at(search);  // once it is at its end
}

/** Which rank in the sample stands for rank k of all: later by six standard deviations, so that the
 * k-th largest is not below it but by a chance of one in a billion. */
std::int64_t sample_rank(std::int64_t count, std::int64_t k) {
  const double expected =
      static_cast<double>(k) / static_cast<double>(count) * static_cast<double>(kSample);
  return static_cast<std::int64_t>(expected + 6.0 * std::sqrt(expected)) + 8;
}

/** Parts of scratch memory, each aligned to `kAlignment`. */
class Layout {
 public:
  static constexpr std::int64_t kAlignment = 256;

  /** Where a part of so many elements begins. */
  template <class T>
  std::int64_t add(std::int64_t elements) {
    const std::int64_t begin = bytes_;
    bytes_ += elements * static_cast<std::int64_t>(sizeof(T));
    bytes_ = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }
  std::int64_t bytes() const { return bytes_; }

 private:
  std::int64_t bytes_ = 0;
};

}  // namespace

void select_top_k(const float* values, float* residual, std::int64_t count, std::int64_t k,
                  const Selected& selected, Scratch& scratch) {
  if (k == 0 || count == 0) {  // what is not finite is left
    select_above(values, residual, count, INFINITY, selected, scratch);
    return;
  }
  const Stream& stream = scratch.stream();
  const bool small = count <= kSample;
  const std::int64_t rank = small ? k : sample_rank(count, k);
  const bool sampled = rank < kSample;
  // Twice what is expected above the bound, and what is equal to it.
  const std::int64_t capacity = small     ? 0
                                : sampled ? std::min(count, 2 * (rank * (count / kSample + 1)) + k)
                                          : count;

  Layout layout;
  const std::int64_t state_at = layout.add<State>(1);
  const std::int64_t first_at = layout.add<Word>(words_for(count));
  const std::int64_t last_at = layout.add<Word>(words_for(count));
  const std::int64_t zeros = layout.bytes();
  const std::int64_t indices_at = layout.add<std::uint32_t>(capacity);
  const std::int64_t magnitudes_at = layout.add<float>(capacity);
  auto* memory = static_cast<std::byte*>(scratch.take(layout.bytes()));
  auto* state = reinterpret_cast<State*>(memory + state_at);

  launch("bound_kernel", bound_kernel, 1, kSamplers, stream,
         Sampling{values, residual, count, sampled ? static_cast<std::uint32_t>(rank) : 0,
                  static_cast<std::uint32_t>(k)},
         reinterpret_cast<Group<float, kGroup>*>(memory), zeros / kAccess, state);

  Compaction all;
  all.source = {.values = values, .count = count};
  all.addend = residual;
  all.sums = residual;
  all.tiles = tiles_in(reinterpret_cast<Word*>(memory + first_at));
  if (small) {
    all.zero_at = residual;
    all.device_cut = &state->cut;
    all.selected = selected;
    compact(all, stream);
    return;
  }
  all.device_cut = &state->bracket;
  all.selected = {reinterpret_cast<std::uint32_t*>(memory + indices_at),
                  reinterpret_cast<float*>(memory + magnitudes_at), &state->candidates,
                  static_cast<std::uint32_t>(capacity)};
  launch("bracket_kernel", bracket_kernel, blocks_for_tiles(count), kThreads, stream, all, state,
         static_cast<std::uint32_t>(k));

  const Source candidates{all.selected.values, all.selected.indices, &state->candidates, capacity};
  const Source sums{.values = residual != nullptr ? residual : values, .count = count};  // by now
  for (int round = 1; round < kDigits; ++round) {
    launch("digit_kernel", digit_kernel, blocks_for_tiles(count), kThreads, stream, candidates,
           sums, state, round, round + 1 == kDigits);
  }

  Compaction last;
  last.source = candidates;
  last.other = sums;
  last.use_other = &state->misled;
  last.zero_at = residual;
  last.device_cut = &state->cut;
  last.selected = selected;
  last.tiles = tiles_in(reinterpret_cast<Word*>(memory + last_at));
  compact(last, stream);
}

}  // namespace tutti::cuda
