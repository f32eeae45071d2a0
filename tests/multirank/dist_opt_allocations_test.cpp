// After its first step DistOpt works in memory that it has, in any mode: every operator new is
// counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "multirank/dist_opt_model.hpp"
#include "opt/compressors/gathered_sparse.hpp"
#include "tutti/adam.hpp"

namespace {

std::atomic<std::int64_t> allocations = 0;  // of all threads of this process

void* allocate(std::size_t size, std::size_t alignment) noexcept {
  ++allocations;
  const std::size_t rounded = (size + alignment - 1) / alignment * alignment;
  return std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
}

void* allocate_or_throw(std::size_t size, std::size_t alignment) {
  void* memory = allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Those for arrays call these; so would those that do not throw, but not those of AddressSanitizer.
void* operator new(std::size_t size) { return allocate_or_throw(size, alignof(std::max_align_t)); }
void* operator new(std::size_t size, std::align_val_t alignment) {
  return allocate_or_throw(size, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t size, const std::nothrow_t& /*unused*/) noexcept {
  return allocate(size, alignof(std::max_align_t));
}
void* operator new(std::size_t size, std::align_val_t alignment,
                   const std::nothrow_t& /*unused*/) noexcept {
  return allocate(size, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

namespace tutti::test {
namespace {

class DistOptAllocations : public RankTest {};

struct Mode {
  std::string name;
  std::function<void(DistOpt&, const Backward&, std::int64_t threshold)> step;
  SparseOptions sparse{};
};

std::vector<Mode> modes() {
  SparseOptions corrected;
  corrected.momentum = 0.9F;
  corrected.clip_norm = 1.0F;
  return {
      {"full", [](DistOpt& opt, const Backward& b,
                  std::int64_t threshold) { opt.backward_and_update(b, threshold); }},
      {"half", [](DistOpt& opt, const Backward& b,
                  std::int64_t threshold) { opt.backward_and_update_half(b, threshold); }},
      {"partial", [](DistOpt& opt, const Backward& b,
                     std::int64_t threshold) { opt.backward_and_partial_update(b, threshold); }},
      {"top-K",
       [](DistOpt& opt, const Backward& b, std::int64_t threshold) {
         opt.backward_and_sparse_update(b, threshold, 0.01, true);
       }},
      {"threshold",
       [](DistOpt& opt, const Backward& b, std::int64_t threshold) {
         opt.backward_and_sparse_update(b, threshold, 0.5, false);
       }},
      {"corrected top-K",
       [](DistOpt& opt, const Backward& b, std::int64_t threshold) {
         opt.backward_and_sparse_update(b, threshold, 0.01, true);
       },
       corrected}};
}

// A bucket for each gradient, some, and one for all.
constexpr std::int64_t kSmall = 7;
constexpr std::int64_t kMiddle = 10'000;
constexpr std::int64_t kLarge = 2'097'152;
/** Some large gradients among small ones, here and there, so that thresholds let more or fewer of
 * them through from step to step, and the ranks choose others. */
void set_gradients(Values& gradients, std::size_t rank, std::size_t step) {
  const std::size_t shift = 7 * rank + 13 * step;
  const std::size_t large = 1 + step % 8;  // of 64
  for (std::vector<float>& array : gradients.arrays) {
    for (std::size_t i = 0; i < array.size(); ++i) {
      array[i] = (i * 29 + shift) % 64 < large ? 1.0F : 1e-3F;
    }
  }
}

/** Of what three optimizers of the same kind allocate after their first step, the least: who waits
 * for long, as on a busy machine, looks after the others, in memory of its own. */
std::int64_t fewest(const std::function<std::int64_t()>& allocations_of_one) {
  std::int64_t least = allocations_of_one();
  for (int other = 0; other < 2; ++other) least = std::min(least, allocations_of_one());
  return least;
}

TEST_F(DistOptAllocations, ThereAreNoneAfterTheFirstStep) {
  ::setenv("TUTTI_LOG", "error", 1);  // who is slow on a busy machine would be said in memory
  on_ranks([](Communicator& communicator) {
    const std::vector<std::size_t> sizes{20'000, 300, 50'000, 7, 9'000};
    const std::vector<Mode> all = modes();
    for (std::size_t number = 0; number < 2 * all.size(); ++number) {
      const Mode& mode = all[number / 2];
      const bool with_adam = number % 2 == 1;
      SCOPED_TRACE(mode.name + (with_adam ? " with Adam" : ""));
      EXPECT_EQ(fewest([&] {
                  DistOptions options;
                  options.sparse = mode.sparse;
                  std::shared_ptr<Optimizer> optimizer =
                      std::make_shared<SGD>(SgdOptions{.momentum = 0.9F});
                  if (with_adam) optimizer = std::make_shared<Adam>(AdamOptions{});
                  DistOpt opt = over(communicator, optimizer, options);
                  Values values(sizes, 1.0F);
                  Values gradients(sizes);
                  opt.register_parameters(values.parameters());
                  const Backward backward = [&](const Emit& emit) {
                    for (std::size_t i = sizes.size(); i-- > 0;)
                      emit(values.view(i), gradients.view(i));
                  };
                  std::size_t steps = 0;
                  const auto rank = static_cast<std::size_t>(communicator.global_rank());
                  const auto step = [&](std::int64_t threshold) {
                    set_gradients(gradients, rank, steps++);
                    mode.step(opt, backward, threshold);
                  };
                  step(kSmall);
                  const std::int64_t after_first = allocations;
                  for (int i = 0; i < 10; ++i) step(kSmall);
                  const std::int64_t of_small = allocations - after_first;
                  // Messages of other sizes take memory, once.
                  for (const std::int64_t threshold : {kMiddle, kLarge}) step(threshold);
                  const std::int64_t after_others = allocations;
                  for (int i = 0; i < 5; ++i) {
                    for (const std::int64_t threshold : {kSmall, kLarge, kMiddle}) step(threshold);
                  }
                  const std::int64_t of_others = allocations - after_others;
                  communicator.barrier();
                  return of_small + of_others;
                }),
                0);
    }
  });
}

/** Between hosts of several ranks each exchanges a share, in several windows. */
TEST_F(DistOptAllocations, NorAreThereWhereSumsAreLong) {
  ::setenv("TUTTI_LOG", "error", 1);
  on_ranks([](Communicator& communicator) {
    const std::vector<std::size_t> sizes{1'000'000};
    EXPECT_EQ(fewest([&] {
                DistOpt opt = over(communicator, std::make_shared<SGD>(SgdOptions{}), {});
                Values values(sizes, 1.0F);
                Values gradients(sizes, 1.0F);
                opt.register_parameters(values.parameters());
                const auto steps = [&](int count) {
                  for (int i = 0; i < count; ++i) {
                    opt.backward_and_update(
                        [&](const Emit& emit) { emit(values.view(0), gradients.view(0)); }, kLarge);
                  }
                };
                steps(1);
                const std::int64_t after_first = allocations;
                steps(5);
                const std::int64_t more = allocations - after_first;
                communicator.barrier();
                return more;
              }),
              0);
  });
}

TEST_F(DistOptAllocations, WhatGpusExchangeIsInMemoryThatIsKept) {
  if (!world().one_host()) GTEST_SKIP() << "between hosts the all_gather itself allocates";
  ::setenv("TUTTI_LOG", "error", 1);
  on_ranks([](Communicator& communicator) {
    constexpr std::int64_t kCount = 30'000;
    const CompressorSite site{std::shared_ptr<Communicator>(&communicator, [](Communicator*) {})};
    GatheredSparseCompressor compressor(site);
    Values gradients({kCount});
    const BucketView all{.elements = kCount, .gradients = gradients.view(0)};
    const auto steps = [&](int count) {
      for (int i = 0; i < count; ++i) {
        set_gradients(gradients, static_cast<std::size_t>(communicator.global_rank()), 3);
        compressor.begin();
        compressor.encode(all);
        compressor.exchange(all, Stream()).wait();
        compressor.decode(all);
        compressor.take_non_finite();
      }
    };
    for (const SparseChoice& choice :
         {SparseChoice{.top_k = true, .spars = 0.01}, SparseChoice{.spars = 0.5}}) {
      compressor.choose({.top_k = choice.top_k, .spars = choice.spars, .correct = false});
      steps(1);
      communicator.barrier();
      const std::int64_t after_first = allocations;
      steps(10);
      EXPECT_EQ(allocations - after_first, 0);
      communicator.barrier();
    }
  });
}

}  // namespace
}  // namespace tutti::test
