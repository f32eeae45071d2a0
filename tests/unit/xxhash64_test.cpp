// XXH64 against values of its reference implementation.
#include "base/xxhash64.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>

namespace tutti {
namespace {

std::uint64_t hash_of(std::string_view text, std::uint64_t seed = 0) {
  return xxhash64(std::as_bytes(std::span(text)), seed);
}

TEST(XxHash64, IsThatOfTheReference) {
  EXPECT_EQ(hash_of(""), 0xEF46DB3751D8E999U);
  EXPECT_EQ(hash_of("a"), 0xD24EC4F1A98C6E5BU);
  EXPECT_EQ(hash_of("abc"), 0x44BC2CF5AD770999U);
  EXPECT_EQ(hash_of("xxhash", 20141025), 0xB559B98D844E0635U);
  EXPECT_EQ(hash_of("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1U);
}

TEST(XxHash64, EachByteAndTheLengthMatter) {
  std::set<std::uint64_t> seen;
  for (std::size_t length = 0; length <= 70; ++length) {
    std::string text(length, '\0');
    seen.insert(hash_of(text));
    for (char& character : text) {
      character = 1;
      seen.insert(hash_of(text));
      character = 0;
    }
  }
  EXPECT_EQ(seen.size(), 71U + 70U * 71U / 2U);
}

}  // namespace
}  // namespace tutti
