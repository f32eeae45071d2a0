// Places views and watches the bytes around them.
#include "support/memory.hpp"

#include <algorithm>

namespace tutti::test {
namespace {

constexpr std::byte kPattern{0xA5};

bool all_pattern(const std::byte* begin, const std::byte* end) {
  return std::all_of(begin, end, [](std::byte byte) { return byte == kPattern; });
}

}  // namespace

std::string_view name_of(Memory memory) {
  constexpr std::array<std::string_view, 4> kNames{"ordinary", "symmetric", "staggered", "mixed"};
  return kNames[static_cast<std::size_t>(memory)];
}

Arena::Arena(Communicator& communicator, std::int64_t bytes)
    : rank_(communicator.global_rank()),
      // Room for both guards and for staggering by some elements; whole cache lines.
      slot_bytes_((bytes + 4 * kGuard + std::int64_t{8} * communicator.world_size() + 63) / 64 *
                  64),
      symmetric_(communicator.allocate(2 * slot_bytes_)) {
  for (auto& memory : ordinary_) memory.resize(static_cast<std::size_t>(slot_bytes_));
}

View Arena::place(std::size_t slot, Memory memory, std::int64_t count, DType dtype) {
  const bool even = rank_ % 2 == 0;
  const bool is_ordinary =
      memory == Memory::ordinary || (memory == Memory::mixed && even == (slot == 1));
  std::byte* base = is_ordinary ? ordinary_[slot].data()
                                : static_cast<std::byte*>(symmetric_.data()) +
                                      static_cast<std::int64_t>(slot) * slot_bytes_;
  std::int64_t offset = kGuard;
  if (is_ordinary) offset += size_of(dtype);
  if (memory == Memory::staggered) offset += (rank_ + 1) * size_of(dtype);
  const View view(base + offset, count, dtype);
  placed_[slot] = {base + offset, base + offset + view.bytes()};
  std::fill(placed_[slot].begin - kGuard, placed_[slot].end + kGuard, kPattern);
  return view;
}

::testing::AssertionResult Arena::guards_intact() const {
  for (const Placed& placed : placed_) {
    if (placed.begin == nullptr) continue;
    if (!all_pattern(placed.begin - kGuard, placed.begin)) {
      return ::testing::AssertionFailure() << "the bytes before an argument were written";
    }
    if (!all_pattern(placed.end, placed.end + kGuard)) {
      return ::testing::AssertionFailure() << "the bytes after an argument were written";
    }
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult Arena::untouched(const ConstView& view) {
  const auto* begin = static_cast<const std::byte*>(view.data);
  if (all_pattern(begin, begin + view.bytes())) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "an argument of " << view.count << " elements was written";
}

}  // namespace tutti::test
