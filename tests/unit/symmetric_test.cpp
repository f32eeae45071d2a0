// Symmetric memory: what it takes of the process, and how it becomes a rank's own after a failure.
#include "comm/shm/memory/symmetric.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/page_size.hpp"
#include "support/few_descriptors.hpp"
#include "support/world.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

TEST(Symmetric, AllocationsTakeNoDescriptors) {
  constexpr int kAllocations = 1500;
  Communicator comm(0, 1, UniqueId::create(), test::short_timeout());
  const test::FewDescriptors limit(128);
  std::vector<Buffer> buffers;
  for (int i = 0; i < kAllocations; ++i) buffers.push_back(comm.allocate(5));
  EXPECT_EQ(buffers.back().bytes(), 5);
}

/** The parts of two ranks, of which this process is rank 1, and how another process sees them. */
TEST(Symmetric, APartThatIsIsolatedIsThisRanksOwn) {
  const std::int64_t stride = (std::int64_t{5} << 20U) + page_size();
  const std::string name = segment_name(UniqueId::create(), "test");
  const NameGuard guard(name);
  const Segment segment = Segment::create(name);
  segment.reserve(0, 2 * stride);
  const FileDescriptor file(::open(("/dev/shm" + name).c_str(), O_RDWR | O_CLOEXEC));
  const auto whole = static_cast<std::size_t>(2 * stride);
  void* seen = ::mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  ASSERT_NE(seen, MAP_FAILED);
  const Mapping others(static_cast<std::byte*>(seen), 2 * stride);

  SymmetricMemory memory(1);
  Buffer buffer = memory.add({segment.map(), segment.map_copy(stride, stride)}, stride, stride);
  const auto own = buffer.as<std::uint8_t>();
  std::fill(own.begin(), own.end() - page_size(), std::uint8_t{7});  // the last page is untouched
  memory.isolate();
  EXPECT_EQ(std::count(own.begin(), own.end(), 7), stride - page_size());
  struct stat status {};
  ASSERT_EQ(::fstat(file.get(), &status), 0);
  EXPECT_EQ(status.st_blocks * 512, stride);  // rank 0's: the shared pages were given back

  std::fill_n(others.base(), 2 * stride, std::byte{9});
  EXPECT_EQ(std::count(own.begin(), own.end(), 7), stride - page_size());
  EXPECT_EQ(own.back(), 0);
  EXPECT_EQ(*(own.data() - 1), 9);  // rank 0's part stays shared
  own.back() = 3;
  EXPECT_EQ(others.base()[2 * stride - 1], std::byte{9});
}

}  // namespace
}  // namespace tutti::shm
