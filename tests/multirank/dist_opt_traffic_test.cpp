// What the statistics say of the bytes between hosts, in every mode: known to the byte.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <vector>

#include "multirank/dist_opt_model.hpp"

namespace tutti::test {
namespace {

std::int64_t hosts() {
  const auto& all = world().hosts;
  return all.empty() ? 1 : std::ssize(std::set<int>(all.begin(), all.end()));
}

/** What the hosts, eight at most, together send to agree on a sparse sum: each of the others a
 * cache line to the first, which answers with one. */
std::int64_t votes() { return 2 * (hosts() - 1) * 64; }

/** What they send for a sum of `bytes`, of which a first window goes along: a line each to each. */
std::int64_t dense(std::int64_t bytes) {
  return hosts() * (hosts() - 1) * 64 + 2 * (hosts() - 1) * bytes;
}

/** With sparse sums gathered, where there are several hosts. */
class DistOptTraffic : public RankTest {
 protected:
  void SetUp() override { ::setenv("TUTTI_SPARSE", "gather", 1); }
  void TearDown() override { ::unsetenv("TUTTI_SPARSE"); }

  /** Collective: what all ranks sent to other hosts in the last step. Only one of a host sends. */
  static std::int64_t sent_by_all(Communicator& communicator, const DistOpt& opt) {
    std::int64_t sent = opt.statistics().bytes_between;
    if (communicator.local_rank() != 0 || hosts() == 1) {
      EXPECT_EQ(sent, 0);
    } else {
      EXPECT_GT(sent, 0);
    }
    communicator.all_reduce(std::span(&sent, 1));
    return sent;
  }
};

Backward emit_falling(Values& values, Values& gradients) {
  return [&](const Emit& emit) {
    for (std::size_t i = values.arrays.size(); i-- > 0;) emit(values.view(i), gradients.view(i));
  };
}

TEST_F(DistOptTraffic, CountsEveryByteOfTheDenseModes) {
  on_ranks([](Communicator& communicator) {
    // No gaps between their gradients, and each so long that it does not go along with the hashes,
    // however fast the wire is between three hosts or more.
    const std::vector<std::size_t> sizes{20'000, 12'480};
    constexpr std::int64_t kFirst = std::int64_t{12'480} * 4;  // the last parameter's, in bytes
    constexpr std::int64_t kSecond = std::int64_t{20'000} * 4;
    DistOpt opt = over(communicator);
    Values values(sizes, 1.0F);
    Values gradients(sizes, 1.0F);
    opt.register_parameters(values.parameters());
    const Backward backward = emit_falling(values, gradients);

    opt.backward_and_update(backward);
    EXPECT_EQ(opt.bytes_per_step(), kFirst + kSecond);
    EXPECT_EQ(sent_by_all(communicator, opt), dense(kFirst + kSecond));
    opt.backward_and_update(backward, 20'000);
    EXPECT_EQ(opt.bytes_per_step(), kFirst + kSecond);
    EXPECT_EQ(sent_by_all(communicator, opt), dense(kFirst) + dense(kSecond));
    opt.backward_and_update_half(backward);
    EXPECT_EQ(opt.bytes_per_step(), (kFirst + kSecond) / 2);
    EXPECT_EQ(sent_by_all(communicator, opt), dense((kFirst + kSecond) / 2));
    for (const std::int64_t partition : {kFirst, kSecond, kFirst}) {
      opt.backward_and_partial_update(backward, 20'000);
      EXPECT_EQ(opt.bytes_per_step(), partition);
      EXPECT_EQ(sent_by_all(communicator, opt), dense(partition));
    }
    opt.synchronize();
    EXPECT_EQ(opt.bytes_per_step(), kFirst + kSecond);
    EXPECT_EQ(sent_by_all(communicator, opt), dense(kFirst + kSecond));
  });
}

TEST_F(DistOptTraffic, CountsEveryByteOfTheSparseModes) {
  on_ranks([](Communicator& communicator) {
    constexpr std::int64_t kCount = 64'000;
    constexpr std::int64_t kGroup = 64;  // neighbours in a packet: a byte and their values
    constexpr std::int64_t kGroupBytes = 1 + kGroup * 4;
    const std::vector<std::size_t> sizes{kCount};
    DistOpt opt = over(communicator);
    Values values(sizes, 1.0F);
    Values gradients(sizes);
    for (std::size_t i = 0; i < sizes[0]; ++i) {
      gradients.arrays[0][i] = static_cast<float>(sizes[0] - i);  // the first are the largest
    }
    opt.register_parameters(values.parameters());
    const Backward backward = emit_falling(values, gradients);
    const auto sent = [&](double spars, bool top_k, std::int64_t entries) {
      opt.backward_and_sparse_update(backward, std::nullopt, spars, top_k, false);
      EXPECT_EQ(opt.bytes_per_step(), entries * 8);
      return sent_by_all(communicator, opt);
    };
    const std::int64_t pairs = hosts() * (hosts() - 1);
    const std::int64_t percent = sent(0.01, true, kCount / 100);
    const std::int64_t ten_percent = sent(0.1, true, kCount / 10);
    EXPECT_EQ(ten_percent - percent, pairs * 9 * (kCount / 100 / kGroup) * kGroupBytes);
    // The rest is votes, and what the hosts tell each other of their packets.
    const std::int64_t told = percent - votes() - pairs * kCount / 100 / kGroup * kGroupBytes;
    EXPECT_EQ(told % (pairs == 0 ? 1 : pairs), 0);
    EXPECT_LE(told, pairs * 700);
    EXPECT_EQ(sent(static_cast<double>(kCount) * 0.99 + 1, false, kCount / 100), percent);
  });
}

TEST_F(DistOptTraffic, AModelWithoutElementsSendsNothing) {
  on_ranks([](Communicator& communicator) {
    DistOpt opt = over(communicator);
    opt.register_parameters({});
    opt.backward_and_update([](const Emit&) {});
    EXPECT_EQ(opt.statistics().density, 0.0);
    EXPECT_EQ(opt.bytes_per_step(), 0);
  });
}

}  // namespace
}  // namespace tutti::test
