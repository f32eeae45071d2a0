// A communicator of one rank on memory of a GPU, over the real NCCL.
#include "tutti/communicator.hpp"

#include <array>

#include "gpu/gpu_test.hpp"

namespace tutti {
namespace {

class GpuCommunicator : public test::GpuTest {
 protected:
  void SetUp() override {
    test::GpuTest::SetUp();
    if (IsSkipped()) return;
    try {
      comm_.emplace(0, 1, UniqueId::create());
      comm_->barrier(stream_).wait();
    } catch (const BackendUnavailable& error) {
      GTEST_SKIP() << "nothing was tested: " << error.what();
    }
  }

  View floats(const Array<float>& array) const {
    return {array.data, array.count, DType::f32, test::kGpu};
  }

  std::optional<Communicator> comm_;
};

TEST_F(GpuCommunicator, ReducesOnStreamsOfAllKinds) {
  const auto in = to_gpu(std::vector<float>(1000, 3.0F));
  for (const Stream& stream : {Stream(), Stream::worker(), stream_}) {
    const auto out = to_gpu(std::vector<float>(1000, 0.0F));
    comm_->all_reduce(floats(in), floats(out), Reduce::premul_sum(0.5), stream).wait();
    EXPECT_EQ(from_gpu(out), std::vector<float>(1000, 1.5F));
  }
}

TEST_F(GpuCommunicator, DoesAllCollectives) {
  const std::int64_t counts[]{5};
  const auto in = to_gpu(std::vector<float>{1, 2, 3, 4, 5});
  const std::vector<std::function<void(View)>> calls{
      [&](View out) { comm_->reduce(floats(in), out, 0); },
      [&](View out) { comm_->broadcast(floats(in), out, 0); },
      [&](View out) { comm_->all_gather(floats(in), out); },
      [&](View out) { comm_->all_gather_v(floats(in), out, counts); },
      [&](View out) { comm_->reduce_scatter(floats(in), out); },
      [&](View out) { comm_->all_to_all(floats(in), out); },
  };
  for (const auto& call : calls) {
    const auto out = to_gpu(std::vector<float>(5, 0.0F));
    call(floats(out));
    EXPECT_EQ(from_gpu(out), (std::vector<float>{1, 2, 3, 4, 5}));
  }
  comm_->all_to_all(floats(in), floats(in));
  EXPECT_EQ(from_gpu(in), (std::vector<float>{1, 2, 3, 4, 5}));
}

TEST_F(GpuCommunicator, AllocatesZeros) {
  const Buffer buffer = comm_->allocate(4000, test::kGpu);
  EXPECT_EQ(buffer.device(), test::kGpu);
  std::vector<float> values(1000, 1.0F);
  stream_.copy(std::span<float>(values), buffer.view(DType::f32)).wait();
  EXPECT_EQ(values, std::vector<float>(1000, 0.0F));
}

TEST_F(GpuCommunicator, SplitsAndGoesOn) {
  auto part = comm_->split(0, 0);
  ASSERT_TRUE(part);
  const auto data = to_gpu(std::vector<float>(10, 2.0F));
  part->all_reduce(floats(data), Reduce::sum, stream_).wait();
  EXPECT_EQ(from_gpu(data), std::vector<float>(10, 2.0F));
}

TEST_F(GpuCommunicator, AGroupConnectsItself) {
  const auto data = to_gpu(std::vector<float>(10, 2.0F));
  comm_->all_reduce(floats(data), Reduce::sum, stream_).wait();
  Communicator group = comm_->group(std::array{0});
  group.all_reduce(floats(data), Reduce::sum, stream_).wait();
  EXPECT_EQ(from_gpu(data), std::vector<float>(10, 2.0F));
}

TEST_F(GpuCommunicator, RefusesMixedMemory) {
  std::vector<float> values(10);
  const auto data = to_gpu(values);
  EXPECT_THROW(comm_->all_reduce(std::span<const float>(values), floats(data)), InvalidArgument);
  EXPECT_THROW(comm_->all_reduce(std::span<float>(values), Reduce::sum, stream_), InvalidArgument);
}

}  // namespace
}  // namespace tutti
