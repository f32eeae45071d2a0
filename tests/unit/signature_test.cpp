// Signatures: what they compare, how they read.
#include "comm/signature.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <vector>

namespace tutti {
namespace {

Signature all_reduce(std::int64_t count) {
  Signature signature;
  signature.sequence = 5;
  signature.operation = Operation::all_reduce;
  signature.dtype = DType::f32;
  signature.count = count;
  return signature;
}

/** One signature for each way to differ from all_reduce(10). */
std::vector<Signature> variations() {
  std::vector<Signature> all(8, all_reduce(10));
  all[0].sequence = 6;
  all[1].operation = Operation::reduce;
  all[2].dtype = DType::i32;
  all[3].reduce = ReduceKind::average;
  all[4].root = 0;
  all[5].count = 11;
  all[6].factor = 2.0;
  all[7].counts = 1;
  return all;
}

TEST(Signature, EveryMemberCounts) {
  std::set<std::uint64_t> hashes{all_reduce(10).hash()};
  EXPECT_FALSE(hashes.insert(all_reduce(10).hash()).second);
  for (const Signature& other : variations()) {
    EXPECT_TRUE(hashes.insert(other.hash()).second) << other.describe();
  }
}

TEST(Signature, HashesAreNeverZeroAndDoNotCollide) {
  std::set<std::uint64_t> hashes;
  for (std::int64_t count = 0; count < 20'000; ++count) {
    const std::uint64_t hash = all_reduce(count).hash();
    EXPECT_NE(hash, 0U);
    EXPECT_TRUE(hashes.insert(hash).second) << count;
  }
}

TEST(Signature, ReadsLikeACall) {
  EXPECT_EQ(all_reduce(10).describe(), "all_reduce(f32, count 10, sum)");
  Signature signature = all_reduce(7);
  signature.operation = Operation::broadcast;
  signature.root = 2;
  EXPECT_EQ(signature.describe(), "broadcast(f32, count 7, root 2)");
  signature = {};
  EXPECT_EQ(signature.describe(), "barrier()");
  signature.operation = Operation::allocate;
  signature.count = 4096;
  EXPECT_EQ(signature.describe(), "allocate(4096 bytes)");
}

TEST(Signature, EveryOperationHasItsName) {
  std::set<std::string> texts;
  for (std::size_t i = 0; i < kOperationCount; ++i) {
    Signature signature;
    signature.operation = static_cast<Operation>(i);
    texts.insert(signature.describe());
  }
  EXPECT_EQ(texts.size(), kOperationCount);
}

TEST(Signature, AMismatchShowsEachRequestWithItsRanks) {
  const std::array<RankSignature, 4> requests{
      {{0, all_reduce(10)}, {1, all_reduce(11)}, {2, all_reduce(10)}, {3, all_reduce(10)}}};
  const std::string text = describe_mismatch(requests);
  EXPECT_NE(text.find("rank 0, 2, 3: all_reduce(f32, count 10, sum)"), std::string::npos) << text;
  EXPECT_NE(text.find("rank 1: all_reduce(f32, count 11, sum)"), std::string::npos) << text;
  EXPECT_EQ(text.find("number"), std::string::npos) << text;
}

TEST(Signature, AMismatchShowsNumbersThatDiffer) {
  std::array<RankSignature, 2> requests{{{0, all_reduce(10)}, {1, all_reduce(10)}}};
  requests[1].signature.sequence = 6;
  EXPECT_EQ(describe_mismatch(requests),
            "the ranks asked for different collectives - rank 0: all_reduce(f32, count 10, sum) as "
            "collective number 5; rank 1: all_reduce(f32, count 10, sum) as collective number 6");
}

TEST(Signature, CountsHashByValueAndOrder) {
  const std::vector<std::int64_t> a{1, 2, 3}, same{1, 2, 3}, other{1, 3, 2}, shorter{1, 2};
  EXPECT_EQ(hash_counts(a), hash_counts(same));
  EXPECT_NE(hash_counts(a), hash_counts(other));
  EXPECT_NE(hash_counts(a), hash_counts(shorter));
}

}  // namespace
}  // namespace tutti
