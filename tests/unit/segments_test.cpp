// Segments: each byte of a message is in one part, whatever its length.
#include "comm/hosts/group/segments.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace tutti {
namespace {

constexpr std::int64_t kLine = 64;
constexpr std::int64_t kWindow = 2 * kLine;
constexpr std::int64_t kWindows = 3;

/** What is wrong with how `bytes` are cut for `owners`; empty if nothing is. */
std::string faults_of(std::int64_t bytes, int owners) {
  const Segments segments(bytes, owners, kWindow, kWindows, kLine);
  std::vector<std::byte> data(static_cast<std::size_t>(bytes));
  std::vector<int> parts(data.size());  // in which each byte is
  std::int64_t longest = 0;
  for (std::int64_t number = 0; number < segments.windows(); ++number) {
    const std::int64_t segment = segments.segment_of(number);
    if (segments.is_first(number) != (number == 0 || segments.segment_of(number - 1) != segment)) {
      return "window " + std::to_string(number) + ": is_first() is wrong";
    }
    const bool last =
        number + 1 == segments.windows() || segments.segment_of(number + 1) != segment;
    if (segments.is_last(number) != last)
      return "window " + std::to_string(number) + ": is_last() is wrong";
    for (int owner = 0; owner < owners; ++owner) {
      const auto part = segments.part(data.data(), owner, number);
      if (part.empty()) continue;
      const std::int64_t begin = part.data() - data.data();
      const std::int64_t end = begin + std::ssize(part);
      longest = std::max(longest, std::ssize(part));
      if (begin % kLine != 0 || (end % kLine != 0 && end != bytes))
        return "a part is cut within a line";
      if (begin < segments.begin(segment) || end > segments.begin(segment + 1)) {
        return "window " + std::to_string(number) + " leaves its segment";
      }
      for (std::int64_t i = begin; i < end; ++i) ++parts[static_cast<std::size_t>(i)];
    }
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i] != 1)
      return "byte " + std::to_string(i) + " is in " + std::to_string(parts[i]) + " parts";
  }
  // The only owner of a few bytes has no whole line.
  if (longest != std::min(bytes, segments.longest_part())) return "longest_part() is wrong";
  return segments.begin(segments.count()) == bytes ? ""
                                                   : "the segments do not end with the message";
}

TEST(Segments, EndWithShorterShards) {
  const Segments segments(10 * kLine, 4, kWindow, kWindows, kLine);
  EXPECT_EQ(segments.shards(10 * kLine, 1), 3 * kLine);
  EXPECT_EQ(segments.shards(10 * kLine, 2), 6 * kLine);
  EXPECT_EQ(segments.shards(8 * kLine + 1, 2), 6 * kLine);  // of whole lines
  EXPECT_EQ(segments.shards(1, 2), 2 * kLine);
}

TEST(Segments, HaveEachByteOnce) {
  for (const int owners : {1, 2, 3, 8}) {
    const std::int64_t segment = owners * kWindow * kWindows;
    for (const std::int64_t about :
         {kLine, kWindow, segment / 2, segment, 2 * segment, 3 * segment + kWindow}) {
      for (std::int64_t bytes = std::max<std::int64_t>(1, about - 2 * kLine);
           bytes <= about + 2 * kLine; ++bytes) {
        ASSERT_EQ(faults_of(bytes, owners), "") << bytes << " bytes, " << owners << " owners";
      }
    }
  }
}

}  // namespace
}  // namespace tutti
