// Counts that 32 bits cannot hold.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>

#include "base/file_descriptor.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

constexpr std::int64_t kCount = (std::int64_t{1} << 31) + 9;
constexpr std::int64_t kChunk = std::int64_t{4} << 20;
constexpr std::int64_t kChunks = kCount / kChunk + 1;
// Where an overflow, a sign or a lost bit shows; all in the first chunk or the last two.
constexpr std::array<std::int64_t, 8> kPlaces{0,           8,          9,          kChunk - 1,
                                              kCount - 10, kCount - 9, kCount - 8, kCount - 1};

/**
 * kCount bytes in four chunks of memory: one for the beginning, two for the end, and one that
 * appears everywhere in between, and is zero. Sums and copies of zeros do not mind that.
 */
class Folded {
 public:
  Folded() : memory_(::memfd_create("folded", MFD_CLOEXEC)) {
    const std::int64_t length = kChunks * kChunk;
    if (!memory_ || ::ftruncate(memory_.get(), kParts * kChunk) != 0) {
      throw SystemError("cannot make memory", errno);
    }
    void* start = ::mmap(nullptr, static_cast<std::size_t>(length), PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) throw SystemError("cannot reserve addresses", errno);
    data_ = static_cast<std::uint8_t*>(start);
    for (std::int64_t chunk = 0; chunk < kChunks; ++chunk) {
      // 0, 1, 1, ..., 1, 2, 3
      const std::int64_t part =
          chunk == 0 ? 0 : std::max<std::int64_t>(1, chunk + kParts - kChunks);
      if (::mmap(data_ + chunk * kChunk, kChunk, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                 memory_.get(), part * kChunk) == MAP_FAILED) {
        throw SystemError("cannot map memory", errno);
      }
    }
  }
  Folded(const Folded&) = delete;
  Folded& operator=(const Folded&) = delete;
  ~Folded() { ::munmap(data_, static_cast<std::size_t>(kChunks * kChunk)); }

  View view() const { return {data_, kCount, DType::u8}; }
  /** Writes `value`, `value` + 1 and so on to kPlaces. */
  void mark(std::uint8_t value) {
    for (const std::int64_t place : kPlaces) data_[place] = value++;
  }
  /** Expects `value`, `value` + step and so on at kPlaces, and zeros everywhere else. */
  void expect(std::uint8_t value, std::uint8_t step) const {
    for (const std::int64_t place : kPlaces) {
      EXPECT_EQ(data_[place], value) << place;
      data_[place] = 0;
      value = static_cast<std::uint8_t>(value + step);
    }
    for (const std::int64_t chunk : {std::int64_t{0}, std::int64_t{1}, kChunks - 2, kChunks - 1}) {
      const std::uint8_t* begin = data_ + chunk * kChunk;
      EXPECT_EQ(std::count(begin, begin + kChunk, 0), kChunk) << chunk;
    }
  }

 private:
  static constexpr std::int64_t kParts = 4;

  FileDescriptor memory_;
  std::uint8_t* data_ = nullptr;
};

class LargeCounts : public RankTest {};

TEST_F(LargeCounts, AreSummed) {
  on_ranks([](Communicator& comm) {
    Folded data;
    data.mark(static_cast<std::uint8_t>(10 + comm.global_rank()));
    comm.all_reduce(data.view());
    data.expect(static_cast<std::uint8_t>(ranks() * 10 + ranks() * (ranks() - 1) / 2),
                static_cast<std::uint8_t>(ranks()));
  });
}

}  // namespace
}  // namespace tutti::test
