// Long sums on hosts of several ranks, of which each exchanges a share.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "multirank/lanes.hpp"
#include "support/data.hpp"
#include "support/memory.hpp"
#include "support/rough.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

class Lanes : public LanesTest {
 protected:
  /** All that is added up at a time: of each rank of a host a window, of each host if it does not
   * give another one all. */
  static std::int64_t segment() {
    return std::int64_t{512} * 1024 * ranks() / (hosts() == 2 ? 2 : 4);
  }
  template <class T>
  static void check_sums(Communicator& comm, const std::vector<std::int64_t>& counts);
};

TEST_F(Lanes, EachRankOfAHostSendsAnEqualShare) {
  if (hosts() == 1) GTEST_SKIP() << "needs two hosts";
  constexpr std::int64_t kOfLeaders = 8 << 10;  // what leaders tell each other, at most
  for (const std::int64_t bytes : {fewest(), fewest() + 3 * segment()}) {
    on_ranks([bytes](Communicator& comm) {
      const std::int64_t locals = ranks() / hosts();
      // All but its own part of what its host adds up, and as much of the results.
      const std::int64_t share = std::int64_t{2} * (hosts() - 1) * bytes / hosts() / locals;
      const std::int64_t sent = sent_for(comm, bytes);
      if (!are_even()) {
        EXPECT_EQ(sent > 0, comm.local_rank() == 0);
      } else if (comm.local_rank() != 0) {
        EXPECT_EQ(sent, share);
      } else {
        EXPECT_GE(sent, share);
        EXPECT_LE(sent, share + kOfLeaders);
      }
    });
  }
  on_ranks([](Communicator& comm) {
    const std::int64_t sent = sent_for(comm, fewest() - 64);
    EXPECT_EQ(sent > 0, comm.local_rank() == 0);
  });
}

/** Where a rank waits for a core for a second as they connect MPI carries all: they may try again.
 */
TEST_F(Lanes, HaveConnectionsOfTheirOwn) {
  std::atomic<int> right = 0;
  for (int time = 0; time < 3 && right == 0; ++time) {
    on_ranks([&right](Communicator& comm) {
      const bool has_some = comm.local_rank() == 0 ? hosts() > 1 : hosts() > 1 && are_even();
      const std::string text = comm.describe();
      int same = (text.find("TCP for collectives") != std::string::npos) == has_some ? 1 : 0;
      if (same == 0) std::cerr << text << "\n";
      comm.all_reduce(std::span(&same, 1), Reduce::min);
      right = same;
    });
  }
  EXPECT_EQ(right, 1);
}

template <class T>
void Lanes::check_sums(Communicator& comm, const std::vector<std::int64_t>& counts) {
  const DType dtype = DTypeOf<T>::value;
  Arena arena(comm, counts.back() * size_of(dtype));
  const std::vector<T> mine = rough<T>(comm.global_rank(), counts.back());
  const std::vector<T> sum = sum_in_order<T>(counts.back(), 1);
  for (const std::int64_t count : counts) {
    for (const Memory memory : kMemories) {
      SCOPED_TRACE("count " + std::to_string(count) + ", " + std::string(name_of(memory)));
      const View in = arena.input(memory, count, dtype);
      const View out = arena.output(memory, count, dtype);
      std::memcpy(in.data, mine.data(), static_cast<std::size_t>(in.bytes()));
      for (int way = 0; way < kWays; ++way) {
        comm.all_reduce(in, out);
        ASSERT_TRUE(same_bits(out, sum.data()));
        ASSERT_TRUE(same_bits(in, mine.data())) << "an input was written";
      }
      for (int way = 0; way < kWays; ++way) {
        std::memcpy(in.data, mine.data(), static_cast<std::size_t>(in.bytes()));
        comm.all_reduce(in);
        ASSERT_TRUE(same_bits(in, sum.data())) << "in place";
      }
      ASSERT_TRUE(arena.guards_intact());
    }
  }
}

/** Lengths whose last segment is a byte's width more or less than whole, or too short for all. */
TEST_F(Lanes, AddInTheOrderOfTheRanksWhateverIsLeftForTheLast) {
  if (hosts() == 1) GTEST_SKIP() << "needs two hosts";
  const std::int64_t least = fewest() / std::int64_t{sizeof(float)};
  const std::int64_t whole = segment() / std::int64_t{sizeof(float)};
  // Of many hosts they are long enough to be slow to check.
  if (hosts() == 2) {
    on_ranks([&](Communicator& comm) { check_sums<float>(comm, {least - 1, least + 1}); });
    on_ranks([](Communicator& comm) {
      check_sums<double>(comm, {(fewest() + 72) / std::int64_t{sizeof(double)}});
    });
  }
  on_ranks([&](Communicator& comm) { check_sums<float>(comm, {least + whole + 17}); });
}

/** Others than the leader send only in lanes. */
TEST_F(Lanes, AreTakenByAllRanksOrByNone) {
  if (hosts() == 1 || !are_even()) GTEST_SKIP() << "needs hosts of equally many ranks";
  on_ranks([](Communicator& comm) {
    const int trials = hosts() == 2 ? 2 * (40 + 7) : 20;  // at most
    const std::int64_t others = ranks() - hosts();
    std::int64_t of_lanes = 0;
    std::int64_t last = -1;
    for (int call = 0; call < trials + 8; ++call) {
      std::int64_t in_lanes = sent_for(comm, fewest()) > 0 && comm.local_rank() != 0 ? 1 : 0;
      comm.all_reduce(std::span(&in_lanes, 1));
      ASSERT_TRUE(in_lanes == others || in_lanes == 0) << in_lanes << " ranks in call " << call;
      if (call < kWays) of_lanes += in_lanes;
      if (call > trials) {
        EXPECT_EQ(in_lanes, last) << "the choice has changed in call " << call;
      }
      last = in_lanes;
    }
    EXPECT_EQ(of_lanes, others) << "one of the first two calls goes in lanes";
  });
}

TEST_F(Lanes, AddEveryDType) {
  if (hosts() != 2 || !are_even()) GTEST_SKIP() << "needs two hosts of equally many ranks";
  for (const DType dtype : kDTypes) {
    on_ranks([dtype](Communicator& comm) {
      const std::int64_t count = fewest() / size_of(dtype) + 3;
      std::vector<std::byte> data(static_cast<std::size_t>(count * size_of(dtype)));
      const View view(data.data(), count, dtype);
      for (const Reduce reduce : reductions(dtype)) {
        // Averages of 16 bits are divided on each host: by three that is not exact.
        if (size_of(dtype) == 2 && reduce.kind == ReduceKind::average && ranks() == 3 * hosts())
          continue;
        for (int way = 0; way < kWays; ++way) {
          fill(view, Contribution{dtype, reduce.kind, comm.global_rank()});
          comm.all_reduce(view, reduce);
          ASSERT_TRUE(holds(view, Reduced{dtype, reduce, ranks()})) << name_of(dtype);
        }
      }
    });
  }
}

/** Some ranks bring less than goes in lanes, or more than the others. */
TEST_F(Lanes, AMismatchNamesBothLengthsBeforeAnythingIsWritten) {
  if (hosts() == 1) GTEST_SKIP() << "needs two hosts";
  const auto host_of = [](int rank) { return world().hosts[static_cast<std::size_t>(rank)]; };
  struct Case {
    std::function<bool(int)> is_odd;
    std::int64_t difference;
  };
  const std::vector<Case> cases{
      {[&](int rank) { return host_of(rank) == host_of(0); }, -16},
      {[&](int rank) { return host_of(rank) != host_of(0); }, -16},
      {[](int rank) { return rank == 0; }, -16},
      {[](int rank) { return rank == ranks() - 1; }, -16},
      {[&](int rank) { return host_of(rank) != host_of(0); }, 16},
  };
  for (const Case& one : cases) {
    on_ranks([&](Communicator& comm) {
      const std::int64_t least = fewest() / 4;
      const std::int64_t other = least + one.difference;
      const std::int64_t own = one.is_odd(comm.global_rank()) ? other : least;
      const std::vector<float> in(static_cast<std::size_t>(own), 1.0F);
      std::vector<float> out(in.size(), -1.0F);
      try {
        comm.all_reduce(std::span<const float>(in), std::span(out));
        ADD_FAILURE() << "no mismatch";
      } catch (const MismatchError& error) {
        const std::string text = error.what();
        for (const std::int64_t count : {least, other}) {
          EXPECT_NE(text.find("count " + std::to_string(count)), std::string::npos) << text;
        }
      }
      EXPECT_EQ(out, std::vector<float>(in.size(), -1.0F));
    });
  }
}

void check_whole_numbers(Communicator& comm, std::int64_t count) {
  const auto value = [](std::int64_t i, int rank) {
    return static_cast<float>(i % 101 * (rank + 1));
  };
  std::vector<float> data(static_cast<std::size_t>(count));
  float ranks = 0;
  for (int rank = 0; rank < comm.world_size(); ++rank) ranks += static_cast<float>(rank + 1);
  for (std::int64_t i = 0; i < count; ++i) {
    data[static_cast<std::size_t>(i)] = value(i, comm.global_rank());
  }
  comm.all_reduce(std::span(data));
  for (std::int64_t i = 0; i < count; ++i) {
    ASSERT_EQ(data[static_cast<std::size_t>(i)], static_cast<float>(i % 101) * ranks) << i;
  }
}

/** Parts whose hosts are even and uneven, of one that is the other. */
TEST_F(Lanes, ComeAndGoInParts) {
  if (hosts() == 1) GTEST_SKIP() << "needs two hosts";
  on_ranks([](Communicator& comm) {
    const std::int64_t count = fewest() / 4 + 5;  // enough for fewer ranks, too
    const bool is_last = comm.global_rank() == ranks() - 1;
    auto without_last = comm.split(is_last ? 1 : 0, 0);
    check_whole_numbers(*without_last, count);
    if (!is_last) {  // one of each host, and the others
      auto firsts = without_last->split(comm.local_rank() == 0 ? 0 : 1, 0);
      check_whole_numbers(*firsts, count);
      std::vector<int> reversed;
      for (int rank = without_last->world_size() - 1; rank >= 0; --rank) reversed.push_back(rank);
      Communicator turned = without_last->group(reversed);
      check_whole_numbers(turned, count);
    }
    check_whole_numbers(comm, count);
    auto turned = comm.split(0, ranks() - comm.global_rank());
    check_whole_numbers(*turned, count);
  });
}

/** Where MPI carries what leaders exchange, be it because of one host alone. */
TEST_F(Lanes, AreNotWhereLeadersHaveNoConnections) {
  if (hosts() == 1 || !are_even()) GTEST_SKIP() << "needs two hosts of equally many ranks";
  const bool is_first = world().hosts[static_cast<std::size_t>(world().rank)] == world().hosts[0];
  for (const bool on_all : {true, false}) {
    if (on_all || is_first) ::setenv("TUTTI_BETWEEN_HOSTS", "mpi", 1);
    on_ranks([](Communicator& comm) {
      EXPECT_EQ(sent_for(comm, fewest()) > 0, comm.local_rank() == 0);
      const bool has_some = comm.describe().find("TCP for collectives") != std::string::npos;
      EXPECT_FALSE(has_some && comm.local_rank() != 0) << comm.describe();
    });
    ::unsetenv("TUTTI_BETWEEN_HOSTS");
  }
}

}  // namespace
}  // namespace tutti::test
