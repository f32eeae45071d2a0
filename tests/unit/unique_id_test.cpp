// Tickets: random, printable, parsable, and nothing else.
#include "tutti/unique_id.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <set>
#include <string>

#include "support/leftovers.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

TEST(UniqueId, TwoAreNeverAlike) {
  std::set<std::string> texts;
  for (int i = 0; i < 1000; ++i) texts.insert(UniqueId::create().to_string());
  EXPECT_EQ(texts.size(), 1000U);
}

TEST(UniqueId, EveryByteIsRandom) {
  // A byte that is constant in 64 tickets would be so by chance once in 2^504.
  std::array<std::set<std::byte>, UniqueId::kBytes> seen;
  for (int i = 0; i < 64; ++i) {
    const UniqueId id = UniqueId::create();
    for (std::size_t at = 0; at < seen.size(); ++at) seen[at].insert(id.bytes()[at]);
  }
  for (const auto& values : seen) EXPECT_GT(values.size(), 1U);
}

TEST(UniqueId, CrossesAPipeAsText) {
  const UniqueId id = UniqueId::create();
  const std::string text = id.to_string();
  EXPECT_EQ(text.size(), 2 * UniqueId::kBytes);
  EXPECT_EQ(text.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(UniqueId::parse(text), id);
}

TEST(UniqueId, CrossesAPickleAsBytes) {
  const UniqueId id = UniqueId::create();
  EXPECT_EQ(UniqueId::from_bytes(id.bytes()), id);
  auto bytes = id.bytes();
  bytes.back() ^= std::byte{1};
  EXPECT_NE(UniqueId::from_bytes(bytes), id);
}

TEST(UniqueId, TextIsInTheOrderOfTheBytes) {
  std::array<std::byte, UniqueId::kBytes> bytes{};
  bytes[0] = std::byte{0x0F};
  bytes[1] = std::byte{0xA0};
  EXPECT_EQ(UniqueId::from_bytes(bytes).to_string().substr(0, 6), "0fa000");
}

TEST(UniqueId, OtherTextsAreRefused) {
  const std::string good = UniqueId::create().to_string();
  EXPECT_THROW(UniqueId::parse(""), InvalidArgument);
  EXPECT_THROW(UniqueId::parse(good.substr(1)), InvalidArgument);
  EXPECT_THROW(UniqueId::parse(good + "0"), InvalidArgument);
  for (const char foreign : {'g', 'A', ' ', '\0', '-', 'x'}) {
    for (const std::size_t at : {std::size_t{0}, std::size_t{101}, good.size() - 1}) {
      std::string bad = good;
      bad[at] = foreign;
      EXPECT_THROW(UniqueId::parse(bad), InvalidArgument) << foreign << " at " << at;
    }
  }
}

TEST(UniqueId, MakingOneLeavesNoTrace) {
  const test::Leftovers before;
  for (int i = 0; i < 100; ++i) UniqueId::create();
  EXPECT_EQ(before.in_process(), "");
  EXPECT_EQ(before.in_dev_shm(), "");
}

}  // namespace
}  // namespace tutti
