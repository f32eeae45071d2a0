// The collectives between hosts, as if every rank were on a host of its own.
#include "comm/hosts/group/group.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/broadcast.hpp"
#include "comm/hosts/group/movements.hpp"
#include "comm/hosts/group/reduce.hpp"
#include "comm/mpi/channel.hpp"
#include "device/cpu/reduction.hpp"
#include "support/data.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using mpi::Channel;
using mpi::Session;
using Bytes = std::vector<std::byte>;

/** Around the sizes of cache lines, of one round, and of windows; fewer elements than ranks. */
constexpr std::array<std::int64_t, 12> kCounts{0,    1,    2,    15,      17,      64,
                                               1000, 2049, 8193, 131'071, 131'072, 400'003};

constexpr int kNotFinalised = 3;

void expect_finalised() {
  int finalised = 0;
  MPI_Finalized(&finalised);
  if (finalised == 0) ::_exit(kNotFinalised);
}

/** The session of the run. tutti initialises MPI here, so it is tutti that finalises it. */
const std::shared_ptr<Session>& session() {
  static const std::shared_ptr<Session> the_session = [] {
    std::atexit(expect_finalised);  // runs after tutti's own handler, which is registered later
    return Session::world(std::chrono::seconds(20));
  }();
  return the_session;
}

std::vector<int> everybody() {
  std::vector<int> ranks(static_cast<std::size_t>(session()->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

class MpiGroup : public ::testing::Test {
 protected:
  explicit MpiGroup(bool backwards = false) : group_(channel_, members(backwards)) {}

  static std::vector<int> members(bool backwards) {
    std::vector<int> ranks = everybody();
    if (backwards) std::reverse(ranks.begin(), ranks.end());
    return ranks;
  }

  Bytes contribution_bytes(DType dtype, ReduceKind kind, std::int64_t count) const {
    Bytes bytes(static_cast<std::size_t>(count * size_of(dtype)));
    fill(View(bytes.data(), count, dtype), Contribution{dtype, kind, group_.position()});
    return bytes;
  }

  Channel channel_{session(), everybody(), 0, std::chrono::seconds(20)};
  HostGroup group_;
  GroupAgreement agreement_{group_};
  AllReduce all_reduce_{group_};
};

/** Offsets of blocks that differ in length, and are empty for some. */
std::vector<std::int64_t> uneven_offsets(int members, std::int64_t unit) {
  std::vector<std::int64_t> offsets{0};
  for (int i = 0; i < members; ++i) offsets.push_back(offsets.back() + (i * 7 + 3) % 4 * unit);
  return offsets;
}

TEST_F(MpiGroup, AllReducesEveryTypeAndSize) {
  for (const DType dtype : kDTypes) {
    for (const Reduce& reduce : reductions(dtype)) {
      for (const std::int64_t count : kCounts) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::string(name_of(reduce.kind)) + " " +
                     std::to_string(count));
        Bytes data = contribution_bytes(dtype, reduce.kind, count);
        all_reduce_.run(data.data(), count, dtype, combine_of(reduce, group_.size()));
        ASSERT_TRUE(
            holds(ConstView(data.data(), count, dtype), Reduced{dtype, reduce, group_.size()}));
      }
    }
  }
}

TEST_F(MpiGroup, ExchangesBlocksOfEveryLength) {
  const int size = group_.size();
  for (const std::int64_t unit : {0, 1, 1000, 200'000}) {
    // What `from` has for `to`, and what is in it.
    const auto length = [&](int from, int to) { return (from * 5 + to * 3) % 4 * unit; };
    const auto byte = [](int from, int to, std::int64_t i) {
      return static_cast<std::byte>(from * 16 + to * 64 + i % 13);
    };
    std::vector<std::int64_t> leaving{0};
    std::vector<std::int64_t> arriving{0};
    Bytes in;
    Bytes expected;
    for (int other = 0; other < size; ++other) {
      const int own = group_.position();
      for (std::int64_t i = 0; i < length(own, other); ++i) in.push_back(byte(own, other, i));
      for (std::int64_t i = 0; i < length(other, own); ++i) expected.push_back(byte(other, own, i));
      leaving.push_back(std::ssize(in));
      arriving.push_back(std::ssize(expected));
    }
    Bytes out(expected.size());
    all_to_all_v(group_, in.data(), leaving, out.data(), arriving);
    ASSERT_EQ(out, expected) << "unit " << unit;
  }
}

TEST_F(MpiGroup, ReducesToEveryRoot) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t count : kCounts) {
      for (int root = 0; root < group_.size(); ++root) {
        SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(count) + " to " +
                     std::to_string(root));
        Bytes data = contribution_bytes(dtype, ReduceKind::max, count);
        reduce_to(group_, root, data.data(), count, dtype, {ReduceKind::max});
        if (group_.position() != root) continue;
        ASSERT_TRUE(holds(ConstView(data.data(), count, dtype),
                          Reduced{dtype, Reduce::max, group_.size()}));
      }
    }
  }
}

TEST_F(MpiGroup, ReduceScattersUnevenBlocks) {
  for (const DType dtype : kDTypes) {
    for (const std::int64_t unit : kCounts) {
      SCOPED_TRACE(std::string(name_of(dtype)) + " " + std::to_string(unit));
      const std::vector<std::int64_t> offsets = uneven_offsets(group_.size(), unit);
      Bytes data = contribution_bytes(dtype, ReduceKind::max, offsets.back());
      reduce_scatter_v(group_, data.data(), offsets, dtype, {ReduceKind::max});
      const auto position = static_cast<std::size_t>(group_.position());
      const std::int64_t begin = offsets[position];
      const ConstView all(data.data(), offsets.back(), dtype);
      ASSERT_TRUE(holds(all.part(begin, offsets[position + 1] - begin),
                        Reduced{dtype, Reduce::max, group_.size(), begin}));
    }
  }
}

TEST_F(MpiGroup, GathersAndBroadcasts) {
  const auto pattern = [](int member) { return Contribution{DType::u8, ReduceKind::sum, member}; };
  for (const std::int64_t count : kCounts) {
    SCOPED_TRACE(count);
    const Bytes in = contribution_bytes(DType::u8, ReduceKind::sum, count);
    Bytes out(in.size() * static_cast<std::size_t>(group_.size()));
    all_gather(group_, in, out);
    const ConstView all(out.data(), std::ssize(out), DType::u8);
    for (int member = 0; member < group_.size(); ++member) {
      ASSERT_TRUE(holds(all.part(member * count, count), pattern(member)));
    }
    for (int root = 0; root < group_.size(); ++root) {
      Bytes data = in;
      broadcast_from(group_, root, data.data(), count);
      ASSERT_TRUE(holds(ConstView(data.data(), count, DType::u8), pattern(root)));
    }

    const std::vector<std::int64_t> offsets = uneven_offsets(group_.size(), count);
    Bytes blocks(static_cast<std::size_t>(offsets.back()));
    const View view(blocks.data(), offsets.back(), DType::u8);
    const auto block = [&](int member) {
      const auto at = static_cast<std::size_t>(member);
      return view.part(offsets[at], offsets[at + 1] - offsets[at]);
    };
    const int position = group_.position();
    fill(block(position), pattern(position));
    all_gather_v(group_, blocks.data(), offsets);
    for (int member = 0; member < group_.size(); ++member) {
      ASSERT_TRUE(holds(block(member), pattern(member)));
    }
  }
}

TEST_F(MpiGroup, AgreesOnlyIfAllDo) {
  EXPECT_TRUE(agreement_.agree(42));
  for (int odd = 0; odd < group_.size(); ++odd) {
    const bool differs = group_.position() == odd && group_.size() > 1;
    EXPECT_EQ(agreement_.agree(differs ? 7 : 42), group_.size() == 1) << "member " << odd;
  }
  EXPECT_EQ(agreement_.agree(static_cast<std::uint64_t>(group_.position())), group_.size() == 1);
  EXPECT_TRUE(agreement_.agree(0));
}

TEST_F(MpiGroup, WhatMembersBringGoesAlongIfAllAgree) {
  const int size = group_.size();
  const auto value = [](int member, std::int64_t i) {
    return static_cast<std::uint8_t>(member * std::int64_t{31} + i);
  };
  for (const std::int64_t each : {1, 63, 64, 500, 1000, 4000, 70'000, 131'072}) {
    for (int only = GroupAgreement::Brought::kAll; only < size; ++only) {
      const bool all = only == GroupAgreement::Brought::kAll;
      const std::int64_t length = all ? size * each : each;
      if (!agreement_.carries(each, length)) continue;
      SCOPED_TRACE(std::to_string(each) + " bytes of " + std::to_string(only));
      Bytes own(static_cast<std::size_t>(each));
      for (std::int64_t i = 0; i < each; ++i) {
        own[static_cast<std::size_t>(i)] = std::byte{value(group_.position(), i)};
      }
      Bytes out(static_cast<std::size_t>(length));
      const auto merge = [&](std::span<const void* const> parts) {
        std::byte* to = out.data();
        for (int member = 0; member < size; ++member) {
          if (!all && member != only) continue;
          std::memcpy(to, parts[static_cast<std::size_t>(member)], static_cast<std::size_t>(each));
          to += each;
        }
      };
      const auto agree = [&](std::uint64_t hash) {
        return agreement_.agree(hash, {own, each, only}, out, std::cref(merge));
      };
      const bool odd = group_.position() == size - 1 && size > 1;
      EXPECT_EQ(agree(odd ? 2 : 1), size == 1);
      if (size > 1) {
        EXPECT_EQ(out, Bytes(out.size())) << "nothing is written unless all agree";
      }
      ASSERT_TRUE(agree(3));
      for (std::int64_t i = 0; i < length; ++i) {
        const int member = all ? static_cast<int>(i / each) : only;
        ASSERT_EQ(out[static_cast<std::size_t>(i)], std::byte{value(member, i % each)}) << i;
      }
    }
  }
}

TEST_F(MpiGroup, MembersMayDifferInWhatTheyBring) {
  const int size = group_.size();
  if (size == 1) GTEST_SKIP() << "needs two ranks";
  for (int odd = 0; odd < size; ++odd) {
    for (const std::int64_t each : {8, 1000, 100'000}) {
      if (!agreement_.carries(each, each)) continue;
      const bool brings = group_.position() == odd;
      const Bytes own(static_cast<std::size_t>(each));
      Bytes out(own.size());
      EXPECT_FALSE(brings ? agreement_.agree(1, {own, each}, out, [](auto) {})
                          : agreement_.agree(2));
      EXPECT_TRUE(agreement_.agree(3));
    }
  }
}

TEST_F(MpiGroup, AgreementTakesMessagesByTheLogarithmOfTheMembers) {
  const std::int64_t before = channel_.bytes_sent();
  EXPECT_TRUE(agreement_.agree(1));
  const int size = group_.size();
  const auto steps = static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
  const int centred = group_.position() == 0 ? size - 1 : 1;
  const int messages = size > 2 && size <= 8 ? centred : steps;
  EXPECT_EQ(channel_.bytes_sent() - before, GroupAgreement::kHeaderBytes * messages);
}

/** Groups whose order is not that of the ranks. */
class BackwardsGroup : public MpiGroup {
 protected:
  BackwardsGroup() : MpiGroup(true) {}
};

TEST_F(BackwardsGroup, AddsInTheOrderOfItsMembers) {
  for (const std::int64_t count : kCounts) {
    std::vector<float> expected(static_cast<std::size_t>(count));
    std::vector<float> data;
    for (int member = 0; member < group_.size(); ++member) {
      std::mt19937 generator(static_cast<unsigned>(member) + 1);
      std::normal_distribution<float> normal(0.0F, 1.0F + 1000.0F * static_cast<float>(member % 2));
      std::vector<float> values(expected.size());
      for (float& value : values) value = normal(generator);
      for (std::size_t i = 0; i < values.size(); ++i) {
        expected[i] = member == 0 ? values[i] : expected[i] + values[i];
      }
      if (member == group_.position()) data = values;
    }
    all_reduce_.run(data.data(), count, DType::f32, {});
    ASSERT_EQ(data, expected) << "count " << count;
  }
}

TEST_F(MpiGroup, ShardsRoundOnceAndAlikeEverywhere) {
  constexpr std::int64_t count = 100'000;
  std::vector<BFloat16> data(count);
  std::vector<BFloat16> expected(count);
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = 0.0F;
    for (int member = 0; member < group_.size(); ++member) {
      const BFloat16 value =
          to_bfloat16(std::sin(static_cast<float>(i) + 0.3F * static_cast<float>(member)));
      if (member == group_.position()) data[i] = value;
      sum = member == 0 ? to_float(value) : sum + to_float(value);
    }
    expected[i] = to_bfloat16(sum);
  }
  all_reduce_.run(data.data(), count, DType::bf16, {});
  EXPECT_TRUE(data == expected);
}

TEST_F(MpiGroup, BatchesCarryMessagesOfSeveralPieces) {
  if (group_.size() < 2) GTEST_SKIP() << "needs two ranks";
  if (group_.position() > 1) return;
  const int other = 1 - group_.position();
  const std::int64_t bytes = (std::int64_t{64} << 20) + 5;
  std::vector<std::uint8_t> out(static_cast<std::size_t>(bytes));
  std::vector<std::uint8_t> in(out.size());
  const auto value = [](int rank, std::size_t i) {
    return static_cast<std::uint8_t>((i >> 16U) * 3U + i + static_cast<unsigned>(rank));
  };
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = value(group_.position(), i);
  Batch batch(channel_, Wire::Traffic::collective);
  batch.recv(in.data(), bytes, other);
  batch.send(out.data(), bytes, other);
  batch.wait();
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < in.size(); ++i) wrong += in[i] == value(other, i) ? 0U : 1U;
  EXPECT_EQ(wrong, 0U);
}

TEST_F(MpiGroup, KindsOfTrafficAndContextsDoNotMix) {
  if (!session()->any_thread()) GTEST_SKIP() << "needs MPI_THREAD_MULTIPLE";
  if (group_.size() < 2) GTEST_SKIP() << "needs two ranks";
  Channel second(session(), everybody(), 1, std::chrono::seconds(20));
  const int next = (channel_.rank() + 1) % channel_.size();
  const int previous = (channel_.rank() + channel_.size() - 1) % channel_.size();
  constexpr int kRounds = 200;
  // Four streams to the same neighbour at once, each on a thread; all count, from different starts.
  const auto stream = [&](Channel& channel, Wire::Traffic traffic, int start) {
    for (int round = 0; round < kRounds; ++round) {
      int out = start + round;
      int in = -1;
      Batch batch(channel, traffic);
      batch.recv(&in, sizeof in, previous);
      batch.send(&out, sizeof out, next);
      batch.wait();
      ASSERT_EQ(in, start + round);
    }
  };
  {
    std::jthread a([&] { stream(channel_, Wire::Traffic::point_to_point, 1000); });
    std::jthread b([&] { stream(channel_, Wire::Traffic::reply, 2000); });
    std::jthread c([&] { stream(second, Wire::Traffic::collective, 3000); });
    stream(channel_, Wire::Traffic::collective, 0);
  }
  EXPECT_TRUE(agreement_.agree(1));
}

TEST_F(MpiGroup, AForkedChildLeavesMpiAlone) {
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    { const Channel inherited(session(), everybody(), 2, std::chrono::seconds(1)); }
    std::exit(0);  // through the exit handlers: expect_finalised() finds MPI as the parent left it
  }
  ASSERT_GT(child, 0);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), kNotFinalised);
  EXPECT_TRUE(agreement_.agree(1));
}

TEST(MpiChannel, RefusesAContextThatMpiHasNoTagsFor) {
  const auto make = [](int context) {
    Channel channel(session(), everybody(), context, std::chrono::seconds(20));
  };
  EXPECT_NO_THROW(make(32'767));
  EXPECT_THROW(make(-1), Error);
  EXPECT_THROW(make(std::numeric_limits<int>::max()), Error);
}

}  // namespace
}  // namespace tutti::test
