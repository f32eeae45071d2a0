// Tests of when the reducer sends buckets and updates parameters, over a transport with a gate.
#include "opt/reducer.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "opt/compressors/plain.hpp"

namespace tutti {
namespace {

/** What a test sees and steers of a GatedTransport. */
class Gate {
 public:
  /** Collectives may pass until `count` have passed. */
  void open_for(std::size_t count) {
    const std::lock_guard lock(mutex_);
    open_for_ = count;
    changed_.notify_all();
  }
  /** The element counts of the collectives that began, once there are `count` of them. */
  std::vector<std::int64_t> wait_for_begun(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return begun_.size() >= count; });
    return begun_;
  }
  std::vector<std::int64_t> begun() { return wait_for_begun(0); }

  void pass(std::int64_t count) {
    std::unique_lock lock(mutex_);
    begun_.push_back(count);
    changed_.notify_all();
    const std::size_t number = begun_.size();
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(10), [&] { return number <= open_for_; }))
        << "collective " << number << " was not let through: somebody waits for it too early";
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t open_for_ = static_cast<std::size_t>(-1);
  std::vector<std::int64_t> begun_;
};

/** This rank of several that all contribute the same, so that an average changes nothing. */
class GatedTransport final : public Transport {
 public:
  GatedTransport(std::shared_ptr<Gate> gate, int size) : gate_(std::move(gate)), size_(size) {}

  int rank() const override { return 0; }
  int size() const override { return size_; }
  int local_rank() const override { return 0; }
  int local_size() const override { return size_; }
  bool shares_host(int) const override { return true; }
  std::string describe() const override { return "a gate"; }
  std::chrono::milliseconds timeout() const override { return std::chrono::seconds(1); }

  void run(const Call& call) override {
    ASSERT_EQ(call.operation, Operation::all_reduce);
    EXPECT_EQ(call.reduction.kind, ReduceKind::average);
    gate_->pass(call.count);
  }
  Buffer allocate(std::int64_t bytes) override {
    auto memory = std::make_shared<std::vector<std::byte>>(static_cast<std::size_t>(bytes));
    return {memory->data(), bytes, memory};
  }
  void abort(std::string_view) noexcept override {}
  std::unique_ptr<Transport> split(int, int) override { return nullptr; }
  std::unique_ptr<Transport> group(std::span<const int>) override { return nullptr; }

 private:
  std::shared_ptr<Gate> gate_;
  int size_;
};

/** Notes what it is asked to update, and opens the gate for one collective more each time. */
class NotingOptimizer final : public Optimizer {
 public:
  explicit NotingOptimizer(Gate& gate) : gate_(gate) {}

  void resize(std::int64_t) override {}
  void update(std::span<const ParameterRange> ranges) override {
    updates.emplace_back();
    for (const ParameterRange& range : ranges) {
      updates.back().push_back(range.offset);
      gradients.insert(gradients.end(), range.gradient, range.gradient + range.count);
      EXPECT_EQ(range.gradient_scale, 1.0F);
    }
    gate_.open_for(updates.size() + 1);
  }
  void step() override {}
  OptimizerState state() const override { return {}; }
  void load_state(const OptimizerState&) override {}

  std::vector<std::vector<std::int64_t>> updates;  // the offsets of each call
  std::vector<float> gradients;

 private:
  Gate& gate_;
};

class ReducerTest : public ::testing::Test {
 protected:
  using Counts = std::vector<std::int64_t>;

  /** A reducer of parameters of these sizes, the last one first; steps are to use `bucket_`. */
  Reducer make(const std::vector<std::int64_t>& sizes, std::int64_t bucket, int ranks = 2) {
    bucket_ = bucket;
    std::vector<ParameterRange> parameters;
    std::int64_t offset = 0;
    for (const std::int64_t size : sizes) {
      ParameterRange range;
      range.offset = offset;
      range.count = size;
      range.parameter = values_.data() + offset;
      parameters.insert(parameters.begin(), range);
      offset += size;
    }
    const auto communicator =
        std::make_shared<Communicator>(std::make_unique<GatedTransport>(gate_, ranks));
    plain_.emplace(CompressorSite{communicator});
    return {communicator, std::move(parameters)};
  }
  ConstView gradient(std::size_t count, float value) {
    made_.assign(count, value);
    return std::span<const float>(made_);
  }

  std::optional<PlainCompressor> plain_;
  std::int64_t bucket_ = 0;
  std::shared_ptr<Gate> gate_ = std::make_shared<Gate>();
  NotingOptimizer optimizer_{*gate_};
  std::vector<float> values_ = std::vector<float>(1000);
  std::vector<float> made_;
};

TEST_F(ReducerTest, SendsAFullBucketWhileGradientsAreStillMade) {
  Reducer reducer = make({1, 2, 3, 4}, 1);
  gate_->open_for(0);
  reducer.begin(*plain_, bucket_);
  reducer.take(0, gradient(4, 0.0F));
  EXPECT_EQ(gate_->wait_for_begun(1), Counts{4});
  EXPECT_TRUE(reducer.sending());
  reducer.take(1, gradient(3, 0.0F));  // does not wait for the first bucket, which is stuck
  gate_->open_for(1);
  EXPECT_EQ(gate_->wait_for_begun(2), (Counts{4, 3}));
  reducer.take(2, gradient(2, 0.0F));
  reducer.take(3, gradient(1, 0.0F));
  gate_->open_for(4);
  reducer.finish(optimizer_);
  EXPECT_EQ(gate_->begun(), (Counts{4, 3, 2, 1}));
  EXPECT_FALSE(reducer.sending());
  EXPECT_EQ(reducer.statistics().bytes_sent, 40);
}

TEST_F(ReducerTest, SendsBucketsInTheirOrderWhateverTheOrderOfGradients) {
  Reducer reducer = make({1, 2, 3}, 1);
  for (int step = 0; step < 2; ++step) {
    reducer.begin(*plain_, bucket_);
    reducer.take(2, gradient(1, 0.0F));
    reducer.take(1, gradient(2, 0.0F));
    EXPECT_FALSE(reducer.sending());
    reducer.take(0, gradient(3, 0.0F));
    reducer.finish(optimizer_);
  }
  EXPECT_EQ(gate_->begun(), (Counts{3, 2, 1, 3, 2, 1}));
}

TEST_F(ReducerTest, UpdatesABucketWhileLaterOnesTravel) {
  Reducer reducer = make({1, 2, 3, 4}, 5);  // buckets of 4, of 3 + 2, of 1
  gate_->open_for(1);                       // the optimizer's updates open it further
  reducer.begin(*plain_, bucket_);
  for (std::size_t i = 0; i < 4; ++i) reducer.take(i, gradient(4 - i, 0.0F));
  reducer.finish(optimizer_);
  EXPECT_EQ(optimizer_.updates, (std::vector<Counts>{{6}, {3, 1}, {0}}));
}

TEST_F(ReducerTest, HoldsBackTheLastBucketUntilNothingCanGoWrong) {
  Reducer one_bucket = make({1, 2}, 100);
  one_bucket.begin(*plain_, bucket_);
  one_bucket.take(0, gradient(2, 1.0F));
  one_bucket.take(1, gradient(1, 1.0F));
  EXPECT_FALSE(one_bucket.sending());
  EXPECT_TRUE(gate_->begun().empty());
  one_bucket.finish(optimizer_);
  EXPECT_EQ(gate_->begun(), Counts{17});  // 2, a gap of 14 and 1
  EXPECT_EQ(one_bucket.statistics().bytes_sent, 68);
}

TEST_F(ReducerTest, ARankAloneSendsNothingEarly) {
  Reducer reducer = make({1, 2}, 1, 1);
  reducer.begin(*plain_, bucket_);
  reducer.take(0, gradient(2, 1.0F));
  EXPECT_FALSE(reducer.sending());
  reducer.begin(*plain_, bucket_);  // tried again
  reducer.take(0, gradient(2, 5.0F));
  reducer.take(1, gradient(1, 6.0F));
  reducer.finish(optimizer_);
  EXPECT_EQ(optimizer_.gradients, (std::vector<float>{5.0F, 5.0F, 6.0F}));
}

TEST_F(ReducerTest, CountsWhatWasNotTakenAsZero) {
  Reducer reducer = make({2, 2, 2}, 1);
  for (std::size_t i = 0; i < 3; ++i) {
    std::fill_n(static_cast<float*>(reducer.gradient(i).data), 2, 7.0F);
  }
  reducer.begin(*plain_, bucket_);
  reducer.take(1, reducer.gradient(1));  // in its place: nothing is copied
  reducer.finish(optimizer_);
  EXPECT_EQ(optimizer_.gradients, (std::vector<float>{0.0F, 0.0F, 7.0F, 7.0F, 0.0F, 0.0F}));
}

TEST_F(ReducerTest, OffersAlignedMemoryForGradients) {
  Reducer reducer = make({5, 17, 1}, 100);
  const auto* start = static_cast<const float*>(reducer.gradient(0).data);
  EXPECT_EQ(static_cast<const float*>(reducer.gradient(1).data) - start, 16);
  EXPECT_EQ(static_cast<const float*>(reducer.gradient(2).data) - start, 48);
  EXPECT_EQ(reducer.gradient(1).count, 17);
}

}  // namespace
}  // namespace tutti
