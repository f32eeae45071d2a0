// Gradients that a worker writes where servers read them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ps/dense/layout.hpp"
#include "ps/job.hpp"
#include "support/thrown.hpp"
#include "tutti/error.hpp"

namespace tutti::ps::test::gradient_memory_test {
namespace {

using tutti::test::text_of;

constexpr std::int64_t kElements = 9000;  // in rows of 3: blocks end in the midst of a page
constexpr std::int64_t kFew = 5;
constexpr int kWeight = 0;
constexpr int kOwn = 1;
constexpr int kBias = 2;

DenseParameter parameter(std::string name, std::vector<std::int64_t> shape, bool shared) {
  DenseParameter made{
      .name = std::move(name), .shape = std::move(shape), .rule = Sgd{.lr = 1.0F}, .initial = {}};
  made.initial.assign(static_cast<std::size_t>(element_count(made)), 0.0F);
  made.shared = shared;
  return made;
}

JobOptions options_of(const Mode& mode, int workers, int servers) {
  return {.workers = workers,
          .servers = servers,
          .dense = {parameter("weight", {kElements / 3, 3}, true),
                    parameter("own", {kElements}, false), parameter("bias", {kFew}, true)},
          .mode = mode};
}

/** Element i is times * (i % 7 + 1). */
void fill(std::span<float> elements, float times) {
  for (std::size_t i = 0; i < elements.size(); ++i)
    elements[i] = times * static_cast<float>(i % 7 + 1);
}

std::vector<float> filled(std::int64_t elements, float times) {
  std::vector<float> values(static_cast<std::size_t>(elements));
  fill(values, times);
  return values;
}

std::vector<float> pulled(Worker& worker, int number) {
  std::vector<float> values(static_cast<std::size_t>(number == kBias ? kFew : kElements));
  worker.pull_dense(number, values);
  return values;
}

DenseGradient written(Worker& worker, int number, float times) {
  DenseGradient gradient = worker.gradient_memory(number);
  fill(gradient.elements(), times);
  return gradient;
}

void push(Worker& worker, int number, const DenseGradient& gradient) {
  worker.push_dense(number, gradient.elements());
}

TEST(PsGradientMemory, InSyncModeItIsTheSameInEachStepAndAddsUpAsCopiesDo) {
  for (const int servers : {1, 2, 3}) {
    Job job(options_of(Sync{}, 2, servers));
    job.run([&](Worker& worker) {
      const float* const first = worker.gradient_memory(kWeight).elements().data();
      float sum = 0;
      for (int step = 1; step <= 4; ++step) {
        for (const int number : {kWeight, kOwn, kBias}) {
          const DenseGradient gradient =
              written(worker, number, static_cast<float>(2 * step + 2 * worker.index()));
          if (number == kWeight) {
            EXPECT_EQ(gradient.elements().data(), first);
          }
          push(worker, number, gradient);
        }
        worker.step();
        sum += static_cast<float>(4 * step + 2) / 2;
        for (const int number : {kWeight, kOwn, kBias})
          EXPECT_EQ(pulled(worker, number), filled(number == kBias ? kFew : kElements, -sum));
        worker.barrier();
      }
      worker.stop();
    });
  }
}

TEST(PsGradientMemory, WhatIsPushedMoreThanOnceInAStepIsAddedUp) {
  for (const bool copies_first : {false, true}) {
    Job job(options_of(Sync{}, 1, 2));
    job.run([&](Worker& worker) {
      const DenseGradient gradient = written(worker, kWeight, 1);
      const std::vector<float> copied = filled(kElements, 10);
      if (copies_first) worker.push_dense(kWeight, copied);
      push(worker, kWeight, gradient);
      if (!copies_first) worker.push_dense(kWeight, copied);
      const DenseGradient other = written(worker, kWeight, 100);
      EXPECT_EQ(other.elements().data() == gradient.elements().data(), copies_first);
      push(worker, kWeight, other);
      worker.step();
      EXPECT_EQ(pulled(worker, kWeight), filled(kElements, -111)) << copies_first;
      worker.stop();
    });
  }
}

TEST(PsGradientMemory, IsRefusedWhileServersMayReadIt) {
  Job job(options_of(Sync{}, 1, 2));
  job.run([&](Worker& worker) {
    const DenseGradient gradient = written(worker, kWeight, 1);
    push(worker, kWeight, gradient);
    EXPECT_EQ(text_of<InvalidArgument>([&] { push(worker, kWeight, gradient); }),
              "push_dense: gradient is memory for that of weight which has been pushed and servers "
              "may still read: gradient_memory() gives other");
    worker.step();
    EXPECT_EQ(pulled(worker, kWeight), filled(kElements, -1));
    fill(gradient.elements(), 2);
    push(worker, kWeight, gradient);  // it need not be asked for again
    worker.step();
    EXPECT_EQ(pulled(worker, kWeight), filled(kElements, -3));
    EXPECT_EQ(text_of<InvalidArgument>([&] { worker.gradient_memory(3); }),
              "gradient_memory: parameter is 3, but there are 3");
    worker.stop();
  });
}

TEST(PsGradientMemory, NothingIsTornOrLostInAnyMode) {
  const std::vector<Mode> modes{Async{}, Async{.max_merge_var_num = 3, .staleness = 2},
                                HalfAsync{1}, HalfAsync{3}, Geo{.push_steps = 3}};
  constexpr int kSteps = 40;
  for (const Mode& mode : modes) {
    for (const int servers : {1, 3}) {
      Job job(options_of(mode, 2, servers));
      job.run([&](Worker& worker) {
        for (int step = 1; step <= kSteps; ++step) {
          // Each memory that is written while a server reads it, or a batch has it, spoils the sum.
          const DenseGradient weight = written(worker, kWeight, static_cast<float>(step));
          push(worker, kWeight, weight);
          if (step % 3 == 0) worker.push_dense(kWeight, filled(kElements, 0.5F));
          if (step % 4 == 0) push(worker, kOwn, written(worker, kOwn, 1));
          if (step % 5 != 0) worker.step();
        }
        worker.flush();
        constexpr int kHalves = kSteps * (kSteps + 1) + kSteps / 3;  // pushed by each worker
        constexpr int kOnes = kSteps / 4;
        if (!std::holds_alternative<Geo>(mode)) {
          worker.step();
          worker.flush();
          worker.barrier();
          EXPECT_EQ(pulled(worker, kWeight), filled(kElements, -kHalves)) << mode.index();
          EXPECT_EQ(pulled(worker, kOwn), filled(kElements, -2 * kOnes));
          worker.barrier();
        }
        worker.stop();
      });
    }
  }
}

TEST(PsGradientMemory, OutlivesTheWorkerAndMayBeWrittenThen) {
  std::optional<DenseGradient> gradient;
  {
    Job job(options_of(Async{}, 1, 2));
    job.run([&](Worker& worker) {
      gradient = written(worker, kWeight, 3);
      worker.stop();
      EXPECT_NE(text_of<Error>([&] { worker.gradient_memory(kWeight); }).find("stop() was called"),
                std::string::npos);
    });
  }
  EXPECT_TRUE(std::ranges::equal(gradient->elements(), filled(kElements, 3)));
  fill(gradient->elements(), 4);
}

}  // namespace
}  // namespace tutti::ps::test::gradient_memory_test
