// A server's blocks of dense parameters: rules, readers, what files take and give back.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "comm/shm/memory/segment.hpp"
#include "ps/dense/layout.hpp"
#include "ps/dense/store.hpp"
#include "tutti/error.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::ps {
namespace {

OwnBlock block(std::int64_t count, Rule rule) {
  return {.block = {.count = count, .name = "w"}, .rule = rule};
}

std::vector<float> floats(std::span<const float> values) { return {values.begin(), values.end()}; }

/** All blocks, of which the gradients lie one after the other. */
void update(DenseStore& store, std::span<const float> gradients, float scale) {
  std::int64_t number = 0;
  for (const OwnBlock& own : store.blocks()) {
    const auto count = static_cast<std::size_t>(own.block.count);
    store.update({number++, gradients.first(count)}, scale);
    gradients = gradients.subspan(count);
  }
}

std::string new_dense_segment() { return shm::segment_name(UniqueId::create(), "dense"); }

TEST(DenseStore, EachBlockHasItsRule) {
  DenseStore store({block(2, Sgd{0.5F}), block(3, Momentum{.lr = 1.0F, .momentum = 0.5F})}, "");
  EXPECT_EQ(store.elements(), 5);
  store.set(std::vector<float>{8, 8, 8, 8, 8});
  const std::vector<float> gradients{4, 8, 4, 8, 16};
  update(store, gradients, 0.5F);
  EXPECT_EQ(floats(store.values()), std::vector<float>({7, 6, 6, 4, 0}));
  update(store, gradients, 0.5F);  // momentum: 0.5 m + g
  EXPECT_EQ(floats(store.values()), std::vector<float>({6, 4, 3, -2, -12}));
  EXPECT_TRUE(store.state(0).empty());
  EXPECT_EQ(floats(store.state(1)), std::vector<float>({3, 6, 12}));
}

TEST(DenseStore, AddKnowsNoRule) {
  DenseStore store({block(2, Adam{})}, "");
  store.set(std::vector<float>{1, 2});
  store.add(std::vector<float>{10, 20});
  EXPECT_EQ(floats(store.values()), std::vector<float>({11, 22}));
  EXPECT_EQ(floats(store.state(0)), std::vector<float>(5, 0.0F));
}

TEST(DenseStore, BlocksCountTheirOwnSteps) {
  DenseStore whole({block(6, Adam{})}, "");
  DenseStore cut({block(2, Adam{}), block(4, Adam{})}, "");
  const std::vector<float> start{1, -2, 3, -4, 5, -6};
  whole.set(start);
  cut.set(start);
  for (int step = 1; step <= 3; ++step) {
    std::vector<float> gradients;
    for (const float value : start) gradients.push_back(value / static_cast<float>(step));
    update(whole, gradients, 1.0F);
    update(cut, gradients, 1.0F);
  }
  EXPECT_EQ(floats(whole.values()), floats(cut.values()));
  EXPECT_EQ(cut.state(0).back(), 3.0F);
  EXPECT_NE(floats(cut.values()), start);
}

TEST(DenseStore, GoesOnFromWhatFilesHave) {
  const std::vector blocks{block(3, Adam{}), block(2, Adagrad{.initial_accumulator = 1.0F})};
  DenseStore store(blocks, "");
  const std::vector<float> gradients{1, 2, 3, 4, 5};
  update(store, gradients, 1.0F);
  DenseStore other(blocks, "");
  for (const std::int64_t i : {0, 1}) {
    const std::size_t first = i == 0 ? 0 : 3;
    const std::size_t count = i == 0 ? 3 : 2;
    other.restore(i, store.values().subspan(first, count), store.state(i));
  }
  update(store, gradients, 1.0F);
  update(other, gradients, 1.0F);
  EXPECT_EQ(floats(store.values()), floats(other.values()));
  EXPECT_EQ(floats(store.state(1)), floats(other.state(1)));
}

TEST(DenseStore, RefusesOtherSizes) {
  DenseStore store({block(3, Adam{})}, "");
  EXPECT_THROW(store.set(std::vector<float>(2)), InvalidArgument);
  EXPECT_THROW(store.update({0, std::vector<float>(4)}, 1.0F), InvalidArgument);
  EXPECT_THROW(store.add(std::vector<float>(4)), InvalidArgument);
  EXPECT_THROW(store.restore(0, std::vector<float>(3), std::vector<float>(6)), InvalidArgument);
  EXPECT_THROW(store.restore(0, std::vector<float>(2), std::vector<float>(7)), InvalidArgument);
}

TEST(DenseStore, IsReadThroughSharedMemory) {
  const std::string segment = new_dense_segment();
  DenseStore store({block(5, Sgd{1.0F})}, segment);
  store.set(std::vector<float>{1, 2, 3, 4, 5});
  const DenseReader reader(segment, 5);
  EXPECT_EQ(floats(reader.values()), std::vector<float>({1, 2, 3, 4, 5}));
  EXPECT_THROW(DenseReader(segment, 1'000'000), SystemError);
  store.unlink();
  EXPECT_THROW(DenseReader(segment, 5), SystemError);
  update(store, std::vector<float>{1, 1, 1, 1, 1}, 1.0F);
  EXPECT_EQ(floats(reader.values()), std::vector<float>({0, 1, 2, 3, 4}));
}

TEST(DenseStore, MayHoldNothing) {
  const std::string segment = new_dense_segment();
  DenseStore store({}, segment);
  const DenseReader reader(segment, 0);
  store.unlink();
  store.set({});
  EXPECT_TRUE(reader.values().empty());
}

TEST(DenseStore, MoreThanThereIsMemoryIsAnErrorAndLeavesNothing) {
  const std::string segment = new_dense_segment();
  EXPECT_THROW(DenseStore({block(std::int64_t{1} << 50U, Sgd{})}, segment), SystemError);
  EXPECT_NE(::access(("/dev/shm" + segment).c_str(), F_OK), 0);
}

TEST(DenseStore, LeavesNoNameBehindThatNobodyHasRemoved) {
  const std::string segment = new_dense_segment();
  {
    const DenseStore store({block(5, Sgd{1.0F})}, segment);
    EXPECT_EQ(::access(("/dev/shm" + segment).c_str(), F_OK), 0);
  }
  EXPECT_NE(::access(("/dev/shm" + segment).c_str(), F_OK), 0);
}

TEST(DenseStore, ReadersSeeWholeElements) {
  // Each step changes all bytes of an element, to 0xBFFFFFFE and back to 0x3F800000.
  constexpr std::int64_t kElements = 1003;
  const std::string segment = new_dense_segment();
  DenseStore store({block(kElements, Sgd{1.0F})}, segment);
  const DenseReader reader(segment, kElements);
  store.unlink();
  const float one = 1.0F;
  const float other = -1.999999761581421F;
  store.set(std::vector<float>(kElements, one));
  std::atomic<bool> done = false;
  std::atomic<std::int64_t> torn = 0;
  std::atomic<std::int64_t> passes = 0;
  std::thread watcher([&] {
    while (!done.load()) {
      for (const float& value : reader.values()) {
        float seen = 0.0F;
        __atomic_load(&value, &seen, __ATOMIC_RELAXED);
        if (seen != one && seen != other) ++torn;
      }
      ++passes;
    }
  });
  const std::vector<float> there(kElements, one - other);
  const std::vector<float> back(kElements, other - one);
  for (int i = 0; i < 2000 || passes.load() < 3; ++i) {
    update(store, there, 1.0F);
    store.add(there);
    store.add(back);
    update(store, back, 1.0F);
  }
  done.store(true);
  watcher.join();
  EXPECT_EQ(torn.load(), 0);
  EXPECT_EQ(reader.values()[0], one);
}

}  // namespace
}  // namespace tutti::ps
