// What two hosts swap as they agree: over MPI, and over connections.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/mpi/channel.hpp"
#include "multirank/host_each.hpp"

namespace tutti::test::mpi_swaps_test {
namespace {

using mpi::Channel;
using Bytes = std::vector<std::byte>;

/** What has another result where the members are taken for each other. */
std::byte merged(std::byte first, std::byte second) {
  return static_cast<std::byte>(3 * std::to_integer<unsigned>(first) +
                                std::to_integer<unsigned>(second));
}

Bytes brought_by(int rank, std::int64_t bytes) {
  Bytes data(static_cast<std::size_t>(bytes));
  for (std::size_t i = 0; i < data.size(); ++i) {
    data[i] = static_cast<std::byte>(i * 7 + i / 251 + static_cast<std::size_t>(rank) * 31);
  }
  return data;
}

Bytes merged_of(std::int64_t bytes) {
  Bytes data = brought_by(0, bytes);
  const Bytes second = brought_by(1, bytes);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = merged(data[i], second[i]);
  return data;
}

/** Ranks 0 and 1, of which the third has no part in what they do. */
class MpiSwaps : public HostEach {
 protected:
  /** Calls `work` where they are connected, and where MPI carries what they swap. */
  static void over_both(const std::function<void(Channel&, GroupAgreement&)>& work) {
    for (const char* const carrier : {"tcp", "mpi"}) {
      SCOPED_TRACE(carrier);
      auto channel = channel_over(carrier);
      if (channel->rank() < 2) {
        const HostGroup group(*channel, {0, 1});
        GroupAgreement agreement(group);
        work(*channel, agreement);
      }
      meet();
      Channel::leave(std::move(channel));
    }
  }

  /** Whether they agree; in place. */
  static bool swap(GroupAgreement& agreement, std::uint64_t hash, Bytes& data) {
    const auto merge = [&](std::span<const void* const> parts) {
      const auto* const first = static_cast<const std::byte*>(parts[0]);
      const auto* const second = static_cast<const std::byte*>(parts[1]);
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = merged(first[i], second[i]);
    };
    return agreement.agree(hash, {data, std::ssize(data)}, data, std::cref(merge));
  }
};

TEST_F(MpiSwaps, BringOfEveryLengthWhatItTakesInAsFewMessages) {
  struct Case {
    std::int64_t bytes;
    std::int64_t by_tcp;  ///< messages
    std::int64_t by_mpi;
  };
  over_both([](Channel& channel, GroupAgreement& agreement) {
    for (const Case& one : {Case{0, 1, 1}, Case{1, 1, 1}, Case{3836, 1, 1}, Case{3837, 2, 1},
                            Case{100'000, 2, 2}, Case{131'072, 2, 3}}) {
      SCOPED_TRACE(one.bytes);
      ASSERT_TRUE(agreement.carries(one.bytes, one.bytes));
      const std::int64_t messages = messages_of(channel);
      const std::int64_t bytes = channel.bytes_sent();
      Bytes data = brought_by(channel.rank(), one.bytes);
      EXPECT_TRUE(swap(agreement, 1, data));
      EXPECT_EQ(data, merged_of(one.bytes));
      EXPECT_EQ(messages_of(channel) - messages, channel.has_streams() ? one.by_tcp : one.by_mpi);
      EXPECT_EQ(channel.bytes_sent() - bytes, one.bytes + GroupAgreement::kHeaderBytes);
    }
  });
}

TEST_F(MpiSwaps, WriteNothingIfTheMembersDiffer) {
  constexpr std::int64_t kLength = 100'000;
  over_both([](Channel& channel, GroupAgreement& agreement) {
    for (const std::int64_t other : {0, 3836, 3837, 131'072}) {
      for (const int odd : {0, 1}) {
        SCOPED_TRACE(std::to_string(other) + " bytes of member " + std::to_string(odd));
        const bool is_odd = channel.rank() == odd;
        const Bytes own = brought_by(channel.rank(), is_odd ? other : kLength);
        Bytes data = own;
        EXPECT_FALSE(swap(agreement, is_odd ? 2 : 1, data));
        EXPECT_EQ(data, own);
        data = brought_by(channel.rank(), kLength);
        EXPECT_TRUE(swap(agreement, 3, data));
        EXPECT_EQ(data, merged_of(kLength));
      }
    }
  });
}

}  // namespace
}  // namespace tutti::test::mpi_swaps_test
