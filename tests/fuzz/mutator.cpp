// The changes, none of which knows the format.
#include "fuzz/mutator.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tutti::fuzz {
namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 16U;
constexpr std::size_t kMostInputs = 2000;

/** Where decoders count wrong. */
constexpr std::uint64_t kEdges[] = {0,
                                    1,
                                    2,
                                    0x7F,
                                    0x80,
                                    0xFF,
                                    0x7FFF,
                                    0xFFFF,
                                    0x7FFFFFFF,
                                    0x80000000,
                                    0xFFFFFFFF,
                                    0x100000000,
                                    0x2000000000000000,
                                    0x4000000000000000,
                                    0x7FFFFFFFFFFFFFFF,
                                    0x8000000000000000,
                                    0xFFFFFFFFFFFFFFFF};

}  // namespace

Input Mutator::next() {
  Input input = any();
  for (std::size_t n = 1 + below(8); n > 0; --n) mutate(input);
  if (input.size() > kMostBytes) input.resize(kMostBytes);
  if (!one_in(4)) mend(input);
  return input;
}

void Mutator::learn(const Input& input) {
  if (corpus_.size() < kMostInputs) corpus_.push_back(input);
}

void Mutator::mutate(Input& input) {
  if (input.empty() || one_in(3)) return change_length(input);
  if (one_in(2)) return change_number(input);
  std::uint8_t& byte = input[below(input.size())];
  byte = one_in(2) ? static_cast<std::uint8_t>(byte ^ 1U << below(8))
                   : static_cast<std::uint8_t>(random_());
}

/** A whole number of either byte order becomes another. */
void Mutator::change_number(Input& input) {
  const std::size_t width = std::min(std::size_t{1} << below(4), input.size());
  // Numbers that matter are in front, more often than not.
  const std::size_t places = input.size() - width + 1;
  const std::size_t at = below(one_in(2) ? places : std::min<std::size_t>(places, 64));
  const bool big_endian = one_in(2);
  std::uint8_t bytes[8] = {};
  std::copy_n(&input[at], width, bytes);
  if (big_endian) std::reverse(bytes, bytes + width);
  std::uint64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  switch (below(3)) {
    case 0:
      value = kEdges[below(std::size(kEdges))];
      break;
    case 1:
      value += below(9) - 4;
      break;
    default:
      value = input.size() + below(9) - 4;
      break;
  }
  std::memcpy(bytes, &value, sizeof value);
  if (big_endian) std::reverse(bytes, bytes + width);
  std::copy_n(bytes, width, &input[at]);
}

void Mutator::change_length(Input& input) {
  const auto place = [&] { return static_cast<std::ptrdiff_t>(below(input.size() + 1)); };
  std::ptrdiff_t begin = place();
  std::ptrdiff_t end = place();
  if (begin > end) std::swap(begin, end);
  if (!one_in(3)) end = std::min(end, begin + static_cast<std::ptrdiff_t>(below(16)));
  switch (below(4)) {
    case 0:
      input.erase(input.begin() + begin, input.begin() + end);
      break;
    case 1: {
      const Input twice(input.begin() + begin, input.begin() + end);
      input.insert(input.begin() + place(), twice.begin(), twice.end());
      break;
    }
    case 2: {
      const Input& other = any();
      const auto from = static_cast<std::ptrdiff_t>(below(other.size() + 1));
      input.erase(input.begin() + begin, input.end());
      input.insert(input.end(), other.begin() + from, other.end());
      break;
    }
    default:
      input.resize(static_cast<std::size_t>(begin));
  }
}

}  // namespace tutti::fuzz
