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

/** What a selection works on, and in. */
struct TopK {
  const float* values;
  float* residual;
  std::int64_t count;
  std::int64_t k;
  Selected selected;

  bool small() const { return count <= kSample; }
  std::int64_t rank() const { return small() ? k : sample_rank(count, k); }
  bool sampled() const { return rank() < kSample; }

  /** How many candidates have room: twice what is expected above the bound, and what is equal. */
  std::int64_t capacity() const {
    if (small()) return 0;
    return sampled() ? std::min(count, 2 * (rank() * (count / kSample + 1)) + k) : count;
  }
};

/** Where the parts of a selection's memory are, each aligned to 256 bytes. */
struct Layout {
  explicit Layout(const TopK& job)
      : state(add<State>(1)),
        first(add<Word>(words_for(job.count))),
        last(add<Word>(words_for(job.count))),
        zeros(bytes),
        indices(add<std::uint32_t>(job.capacity())),
        magnitudes(add<float>(job.capacity())) {}

  template <class T>
  std::int64_t add(std::int64_t elements) {
    constexpr std::int64_t kAlignment = 256;
    const std::int64_t begin = bytes;
    bytes += elements * static_cast<std::int64_t>(sizeof(T));
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return begin;
  }

  std::int64_t bytes = 0;
  std::int64_t state;
  std::int64_t first;  // the tiles of the first compaction
  std::int64_t last;   // and of the last
  std::int64_t zeros;  // what comes before is zero at first
  std::int64_t indices;
  std::int64_t magnitudes;
};

void launch_all(const TopK& job, std::byte* memory, const Stream& stream) {
  const Layout layout(job);
  auto* state = reinterpret_cast<State*>(memory + layout.state);
  const auto rank = job.sampled() ? static_cast<std::uint32_t>(job.rank()) : 0;
  const auto k = static_cast<std::uint32_t>(job.k);
  launch("bound_kernel", bound_kernel, 1, kSamplers, stream,
         Sampling{job.values, job.residual, job.count, rank, k},
         reinterpret_cast<Group<float, kGroup>*>(memory), layout.zeros / kAccess, state);

  Compaction all;
  all.source = {.values = job.values, .count = job.count};
  all.addend = job.residual;
  all.sums = job.residual;
  all.tiles = tiles_in(reinterpret_cast<Word*>(memory + layout.first));
  if (job.small()) {
    all.zero_at = job.residual;
    all.device_cut = &state->cut;
    all.selected = job.selected;
    compact(all, stream);
    return;
  }
  all.device_cut = &state->bracket;
  all.selected = {reinterpret_cast<std::uint32_t*>(memory + layout.indices),
                  reinterpret_cast<float*>(memory + layout.magnitudes), &state->candidates,
                  static_cast<std::uint32_t>(job.capacity())};
  launch("bracket_kernel", bracket_kernel, blocks_for_tiles(job.count), kThreads, stream, all,
         state, k);

  const Source candidates{all.selected.values, all.selected.indices, &state->candidates,
                          job.capacity()};
  const Source sums{.values = job.residual != nullptr ? job.residual : job.values,
                    .count = job.count};  // by now
  for (int round = 1; round < kDigits; ++round) {
    launch("digit_kernel", digit_kernel, blocks_for_tiles(job.count), kThreads, stream, candidates,
           sums, state, round, round + 1 == kDigits);
  }

  Compaction last;
  last.source = candidates;
  last.other = sums;
  last.use_other = &state->misled;
  last.zero_at = job.residual;
  last.device_cut = &state->cut;
  last.selected = job.selected;
  last.tiles = tiles_in(reinterpret_cast<Word*>(memory + layout.last));
  compact(last, stream);
}

std::uint64_t bits_of(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

}  // namespace

void select_top_k(const float* values, float* residual, std::int64_t count, std::int64_t k,
                  const Selected& selected, Scratch& scratch) {
  if (k == 0 || count == 0) {  // what is not finite is left
    select_above(values, residual, count, INFINITY, selected, scratch);
    return;
  }
  const TopK job{values, residual, count, k, selected};
  auto* memory = static_cast<std::byte*>(scratch.take(Layout(job).bytes));
  const LaunchGraphs::Arguments arguments{bits_of(values),
                                          bits_of(residual),
                                          static_cast<std::uint64_t>(count),
                                          static_cast<std::uint64_t>(k),
                                          bits_of(selected.indices),
                                          bits_of(selected.values),
                                          bits_of(selected.count),
                                          selected.capacity,
                                          bits_of(memory)};
  scratch.graphs().launch(scratch.stream(), arguments,
                          [&](const Stream& stream) { launch_all(job, memory, stream); });
}

void load_top_k() { load_all(bound_kernel, bracket_kernel, digit_kernel); }

}  // namespace tutti::cuda
