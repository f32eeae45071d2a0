// Exact top-K: a sample brackets the k-th largest magnitude, then a radix select among the few
// elements that are left.
#include <algorithm>
#include <cmath>

#include "device/cuda/compact.cuh"
#include "device/cuda/launch.cuh"

namespace tutti::cuda {
namespace {

constexpr std::int64_t kSample = 65536;
constexpr std::int64_t kFew = 65536;  // elements among which no sample is needed
constexpr int kBins = 2048;
constexpr int kBinsPerThread = kBins / kThreads;

/** Three digits of 11, 10 and 10 bits make the 31 bits of a magnitude. */
struct Digit {
  int shift;
  int width;
};
constexpr Digit kDigits[]{{20, 11}, {10, 10}, {0, 10}};
constexpr int kDigitCount = 3;

/** A search for the element of a rank, between two digits. */
struct Search {
  std::uint32_t bits;  ///< the digits found so far
  std::uint32_t rank;  ///< of the element among those with these digits; the largest has rank 1
};

/** What a selection has on the GPU. All zero at first. */
struct State {
  Search sample;
  Search exact;
  Search full;
  Cut bracket;
  Cut cut;
  std::uint32_t candidates;
  std::uint32_t misled;
  std::uint32_t bins[3 * kDigitCount][kBins];
};

/** What is searched. */
struct Values {
  const float* data;
  std::int64_t count;
  const std::uint32_t* device_count;  ///< if not null, instead of a larger `count`
  Condition condition;
};

__device__ std::int64_t count_of(const Values& values) {
  if (values.device_count == nullptr || *values.device_count > values.count) return values.count;
  return *values.device_count;
}

/** One element of each of kSample stretches of equal length, at a place that looks random. */
__global__ void __launch_bounds__(kThreads)
    sample_kernel(const float* values, const float* addend, std::int64_t count, float* sample) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t stretch = count / kSample;
  const std::uint32_t random = static_cast<std::uint32_t>(i) * 2654435761U;
  const std::int64_t at = i * stretch + (random >> 8U) % stretch;
  sample[i] = values[at] + (addend != nullptr ? addend[at] : 0.0F);
}

/** Counts the values that have the digits found so far, by their next digit. */
__global__ void __launch_bounds__(kThreads)
    count_kernel(const Values values, const Search* search, Digit digit, std::uint32_t* bins) {
  if (!values.condition.holds()) return;
  __shared__ std::uint32_t own[kBins];
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) own[bin] = 0;
  __syncthreads();
  const int above = digit.shift + digit.width;  // at most 31
  const std::uint32_t wanted = search->bits >> above;
  const std::uint32_t mask = (1U << digit.width) - 1U;
  const std::int64_t count = count_of(values);
  for_each_group_of_grid<kGroup>(count, takes_groups(values.data), [&]<int kN>(std::int64_t at) {
    for (const float value : load<kN>(values.data + at).elements) {
      const std::uint32_t bits = magnitude_bits(value);
      if (bits >> above == wanted) atomicAdd(own + (bits >> digit.shift & mask), 1U);
    }
  });
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
    if (own[bin] != 0) atomicAdd(bins + bin, own[bin]);
  }
}

/** Finds the bin of the rank that is searched for: one block. */
__global__ void __launch_bounds__(kThreads)
    pick_kernel(Condition condition, Search* search, Digit digit, const std::uint32_t* bins) {
  if (!condition.holds()) return;
  // Thread t has the bins from the top down: thread 0 the highest.
  __shared__ std::uint32_t sums[kThreads];
  const int thread = static_cast<int>(threadIdx.x);
  const int highest = kBins - 1 - thread * kBinsPerThread;
  std::uint32_t own = 0;
  for (int i = 0; i < kBinsPerThread; ++i) own += bins[highest - i];
  sums[thread] = own;
  __syncthreads();
  for (int distance = 1; distance < kThreads; distance *= 2) {
    const std::uint32_t more = thread >= distance ? sums[thread - distance] : 0;
    __syncthreads();
    sums[thread] += more;
    __syncthreads();
  }
  const Search before = *search;
  __syncthreads();  // all have read it before one writes it
  std::uint32_t larger = sums[thread] - own;
  if (larger >= before.rank || sums[thread] < before.rank) return;
  for (int i = 0; i < kBinsPerThread; ++i) {
    const std::uint32_t here = bins[highest - i];
    if (larger + here >= before.rank) {
      const auto found = static_cast<std::uint32_t>(highest - i);
      *search = {before.bits | found << digit.shift, before.rank - larger};
      return;
    }
    larger += here;
  }
}

/** One thread. */
__global__ void start_sample_kernel(State* state, std::uint32_t rank) { state->sample = {0, rank}; }

/** One thread: everything not below the sampled element is a candidate, and what is not finite. */
__global__ void bracket_kernel(State* state) {
  state->bracket = {min(state->sample.bits, kInfinityBits), kAll};
}

/** One thread: were the right elements kept? */
__global__ void judge_kernel(State* state, std::uint32_t k, std::uint32_t capacity) {
  state->misled = state->candidates < k || state->candidates > capacity ? 1 : 0;
  state->exact = {0, k};
  state->full = {0, k};
}

/** One thread: the cut at the k-th largest. What is not finite is selected in any case. */
__global__ void cut_kernel(State* state) {
  const Search found = state->misled != 0 ? state->full : state->exact;
  state->cut = {found.bits, found.rank};
  if (found.bits >= kInfinityBits) state->cut = {kInfinityBits, kAll};
}

/** Launches the search for the element of rank search->rank. */
void find(const Values& values, Search* search, std::uint32_t (*bins)[kBins],
          const Stream& stream) {
  constexpr std::int64_t kMostBlocks = 1024;
  const auto blocks = static_cast<unsigned>(
      std::clamp<std::int64_t>(blocks_for(values.count, kChunk), 1, kMostBlocks));
  for (int i = 0; i < kDigitCount; ++i) {
    launch("count_kernel", count_kernel, blocks, kThreads, stream, values, search, kDigits[i],
           bins[i]);
    launch("pick_kernel", pick_kernel, 1, kThreads, stream, values.condition, search, kDigits[i],
           bins[i]);
  }
}

/** Which rank in the sample stands for rank k of all: later by four standard deviations, so that
 * the k-th largest is almost surely not below it. */
std::int64_t sample_rank(std::int64_t count, std::int64_t k) {
  const double expected =
      static_cast<double>(k) / static_cast<double>(count) * static_cast<double>(kSample);
  return static_cast<std::int64_t>(expected + 4.0 * std::sqrt(expected)) + 8;
}

}  // namespace

void select_top_k(const float* values, float* residual, std::int64_t count, std::int64_t k,
                  const Selected& selected, const Stream& stream) {
  if (k == 0 || count == 0) {  // what is not finite is left
    select_above(values, residual, count, INFINITY, selected, stream);
    return;
  }
  const Buffer state_memory = stream.allocate(sizeof(State));
  stream.fill_with_zeros(state_memory.view(DType::u8));
  auto* state = static_cast<State*>(state_memory.data());

  const std::int64_t rank = sample_rank(count, k);
  const bool sampled = count > kFew && rank < kSample;
  // Twice what is expected inside the bracket.
  const std::int64_t capacity =
      sampled ? std::min(count, 2 * (rank * (count / kSample + 1)) + kFew) : count;
  const Buffer indices =
      stream.allocate(capacity * static_cast<std::int64_t>(sizeof(std::uint32_t)));
  const Buffer magnitudes = stream.allocate(capacity * static_cast<std::int64_t>(sizeof(float)));

  Buffer sample;
  if (sampled) {
    sample = stream.allocate(kSample * static_cast<std::int64_t>(sizeof(float)));
    auto* data = static_cast<float*>(sample.data());
    launch("sample_kernel", sample_kernel, kSample / kThreads, kThreads, stream, values, residual,
           count, data);
    launch("start_sample_kernel", start_sample_kernel, 1, 1, stream, state,
           static_cast<std::uint32_t>(rank));
    find({data, kSample, nullptr, {}}, &state->sample, state->bins, stream);
    launch("bracket_kernel", bracket_kernel, 1, 1, stream, state);
  }

  Compaction bracket;  // the one pass over everything
  bracket.values = values;
  bracket.addend = residual;
  bracket.sums = residual;
  bracket.count = count;
  bracket.device_cut = sampled ? &state->bracket : nullptr;
  bracket.cut = {0, kAll};
  bracket.selected = {static_cast<std::uint32_t*>(indices.data()),
                      static_cast<float*>(magnitudes.data()), &state->candidates,
                      static_cast<std::uint32_t>(capacity)};
  compact(bracket, stream);
  launch("judge_kernel", judge_kernel, 1, 1, stream, state, static_cast<std::uint32_t>(k),
         static_cast<std::uint32_t>(capacity));

  const Condition led{&state->misled, 0};
  const Condition misled{&state->misled, 1};
  const float* sums = residual != nullptr ? residual : values;  // by now
  find({bracket.selected.values, capacity, &state->candidates, led}, &state->exact,
       state->bins + kDigitCount, stream);
  find({sums, count, nullptr, misled}, &state->full, state->bins + 2 * kDigitCount, stream);
  launch("cut_kernel", cut_kernel, 1, 1, stream, state);

  Compaction last;
  last.zero_at = residual;
  last.device_cut = &state->cut;
  last.selected = selected;
  last.values = sums;
  last.count = count;
  last.condition = misled;
  compact(last, stream);
  last.values = bracket.selected.values;
  last.indices = bracket.selected.indices;
  last.device_count = &state->candidates;
  last.count = capacity;
  last.condition = led;
  compact(last, stream);
}

}  // namespace tutti::cuda
