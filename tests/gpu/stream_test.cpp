// Memory, streams and events of a GPU.
#include <cstring>
#include <numeric>

#include "gpu/gpu_test.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

class GpuStream : public test::GpuTest {};

TEST_F(GpuStream, CopiesThereAndBack) {
  std::vector<float> values(100001);
  std::iota(values.begin(), values.end(), 0.0F);
  EXPECT_EQ(from_gpu(to_gpu(values, 3)), values);
}

TEST_F(GpuStream, FillsWithZeros) {
  auto array = to_gpu(std::vector<float>(1000, 1.0F));
  stream_.fill_with_zeros(array.view());
  EXPECT_EQ(from_gpu(array), std::vector<float>(1000, 0.0F));
}

TEST_F(GpuStream, WaitsForAnotherStream) {
  const Stream other = Stream::on(test::kGpu);
  auto array = room<std::uint8_t>(64 << 20);
  const std::vector<std::uint8_t> ones(std::size_t{64} << 20U, 1);
  const Event filled = stream_.copy(array.view(), ConstView(ones.data(), 64 << 20, DType::u8));
  other.wait(filled);
  std::uint8_t last = 0;
  other.copy(View(&last, 1, DType::u8), array.view().part((64 << 20) - 1, 1)).wait();
  EXPECT_EQ(last, 1);
  EXPECT_TRUE(filled.ready());
}

TEST_F(GpuStream, MemoryOfOneGoesBackAndComesAgain) {
  for (int i = 0; i < 1000; ++i) {  // more than the GPU has, were it not given back
    const Buffer buffer = stream_.allocate(std::int64_t{1} << 30);
    ASSERT_NE(buffer.data(), nullptr);
    EXPECT_EQ(buffer.device(), test::kGpu);
  }
  stream_.synchronize();
}

TEST_F(GpuStream, TooMuchMemoryIsRefused) {
  EXPECT_THROW(stream_.allocate(std::int64_t{1} << 45), SystemError);
  EXPECT_EQ(from_gpu(to_gpu(std::vector<float>(10, 1.0F))), std::vector<float>(10, 1.0F));
}

TEST_F(GpuStream, TakesPinnedMemory) {
  const Buffer pinned = Buffer::pinned(400);
  std::memset(pinned.data(), 0, 400);
  auto array = to_gpu(std::vector<float>(100, 2.0F));
  stream_.copy(pinned.view(DType::u8), array.view()).wait();
  EXPECT_EQ(pinned.as<float>()[99], 2.0F);
}

TEST_F(GpuStream, KnowsWhoseMemoryItIs) {
  const auto array = room<float>(4);
  const Buffer pinned = Buffer::pinned(16);
  int here = 0;
  EXPECT_EQ(device_of(array.data + 3), test::kGpu);
  EXPECT_EQ(device_of(nullptr), test::kGpu);
  EXPECT_EQ(device_of(pinned.data()), Device{});
  EXPECT_EQ(device_of(&here), Device{});
}

TEST_F(GpuStream, BorrowsTheDefaultStream) {
  const Stream borrowed = Stream::borrow(test::kGpu, nullptr);
  EXPECT_EQ(borrowed.native(), nullptr);
  EXPECT_EQ(borrowed.device(), test::kGpu);
  EXPECT_FALSE(borrowed.is_inline());
  auto array = room<float>(4);
  borrowed.fill_with_zeros(array.view()).wait();
}

}  // namespace
}  // namespace tutti
