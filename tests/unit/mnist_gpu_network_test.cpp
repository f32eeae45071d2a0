// The network on a GPU beside the one on the CPU.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "digits.hpp"
#include "network.hpp"
#include "tutti/device.hpp"
#include "tutti/error.hpp"

namespace mnist {
namespace {

constexpr std::int64_t kBatch = 13;

/** Gives a network memory for its gradients, and reads them back. */
class Gradients {
 public:
  explicit Gradients(Network& network) : stream_(network.stream()) {
    std::vector<tutti::View> views;
    for (const tutti::Parameter& parameter : network.parameters()) {
      memory_.push_back(stream_.allocate(parameter.value.bytes()));
      views.push_back(memory_.back().view(tutti::DType::f32));
    }
    network.set_gradients(views);
  }

  std::vector<float> read(std::size_t i) const {
    const tutti::View view = memory_[i].view(tutti::DType::f32);
    std::vector<float> values(static_cast<std::size_t>(view.count));
    stream_.copy(std::span<float>(values), view).wait();
    return values;
  }
  std::size_t size() const { return memory_.size(); }

 private:
  tutti::Stream stream_;
  std::vector<tutti::Buffer> memory_;
};

TEST(GpuNetwork, HasTheGradientsOfTheCpu) {
  if (tutti::gpu_count() == 0) GTEST_SKIP() << "no GPU: nothing was tested";
  Cnn cnn(3, kBatch);
  const auto cpu = make_cpu_network(cnn);
  const auto gpu = make_gpu_network(cnn, kBatch, {tutti::DeviceKind::cuda, 0});
  const Gradients expected(*cpu);
  const Gradients got(*gpu);
  const Images digits = generate_digits(20, 1, 0);
  const std::vector<std::int64_t> indices{19, 3, 4, 8, 0, 1, 2, 5, 6, 7, 11, 12, 3};
  for (Network* network : {cpu.get(), gpu.get()}) {
    network->forward(digits, indices);
    int emitted = 0;
    network->backward([&](tutti::View, const tutti::Gradient&) { ++emitted; });
    EXPECT_EQ(emitted, 8);
  }
  const Totals there = gpu->take_totals();
  const Totals here = cpu->take_totals();
  EXPECT_NEAR(there.mean_losses, here.mean_losses, 1e-4);
  EXPECT_EQ(there.correct, here.correct);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::vector<float> want = expected.read(i);
    const std::vector<float> have = got.read(i);
    const float largest = std::abs(*std::max_element(
        want.begin(), want.end(), [](float a, float b) { return std::abs(a) < std::abs(b); }));
    for (std::size_t j = 0; j < want.size(); ++j) {
      ASSERT_NEAR(have[j], want[j], 1e-4F * largest) << "parameter " << i << ", element " << j;
    }
  }
}

TEST(GpuNetwork, WithoutAGpuIsRefused) {
  if (tutti::gpu_count() > 0) GTEST_SKIP() << "there is a GPU";
  Cnn cnn(3, 1);
  EXPECT_THROW(make_gpu_network(cnn, 1, {tutti::DeviceKind::cuda, 0}), tutti::BackendUnavailable);
}

}  // namespace
}  // namespace mnist
