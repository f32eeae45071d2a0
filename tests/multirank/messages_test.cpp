// Tags, recvs from any source, and exchanges: what goes where, and in which order.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "multirank/numbers.hpp"
#include "support/data.hpp"
#include "support/memory.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

class Messages : public RankTest {};

double datum(int from, int to, std::int64_t i) {
  return contribution(DType::u8, ReduceKind::sum, 8 * from + to, i);
}

TEST_F(Messages, EveryRankExchangesWithEveryRankAndItself) {
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    for (const DType dtype : {DType::u8, DType::f32, DType::f64, DType::boolean, DType::bf16}) {
      const std::int64_t width = size_of(dtype);
      // What goes with the offer, a piece in shared memory and one between hosts, and some of them.
      for (const std::int64_t count :
           {std::int64_t{0}, std::int64_t{1}, 128 / width, 128 / width + 1, (60 << 10) / width - 1,
            (64 << 10) / width + 1, (1 << 20) / width + 3}) {
        SCOPED_TRACE(std::string(name_of(dtype)) + ", count " + std::to_string(count));
        const std::int64_t bytes = (count + 16) * width;
        const auto room = static_cast<std::size_t>(bytes * ranks());
        std::vector<std::byte> sent(room);
        std::vector<std::byte> got(room, std::byte{0x5A});
        std::vector<Message> messages;
        for (int peer = 0; peer < ranks(); ++peer) {
          const View to(sent.data() + peer * bytes, count, dtype);
          const View from(got.data() + peer * bytes, count, dtype);
          fill(to, [&](std::int64_t i) { return datum(rank, peer, i); });
          messages.push_back(Message::send(to, peer, rank));
          messages.push_back(Message::recv(from, peer, peer));
        }
        if (rank % 2 == 1) std::reverse(messages.begin(), messages.end());
        comm.exchange(messages);
        for (int peer = 0; peer < ranks(); ++peer) {
          const View from(got.data() + peer * bytes, count, dtype);
          ASSERT_TRUE(holds(from, [&](std::int64_t i) { return datum(peer, rank, i); }));
          ASSERT_EQ(got[static_cast<std::size_t>(peer * bytes + count * width)], std::byte{0x5A});
        }
      }
    }
  });
}

TEST_F(Messages, ManyMebibytesBothWaysAtOnce) {
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    const int next = (rank + 1) % ranks();
    const int previous = (rank + ranks() - 1) % ranks();
    constexpr std::int64_t kCount = (8 << 20) / 8 + 1;
    const Numbers mine = numbers(kCount, std::int64_t{1000} * rank);
    Numbers theirs(mine.size());
    Numbers others(mine.size());
    const std::vector<Message> messages{
        Message::send(in(mine), next), Message::send(in(mine), previous, 1),
        Message::recv(out(theirs), next, 1), Message::recv(out(others), previous)};
    comm.exchange(messages);
    EXPECT_TRUE(theirs == numbers(kCount, std::int64_t{1000} * next));
    EXPECT_TRUE(others == numbers(kCount, std::int64_t{1000} * previous));
  });
}

TEST_F(Messages, AnExchangeMeetsSendsAndRecvsInAnyOrderOfTheirTags) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const int last = ranks() - 1;
    for (const std::int64_t count : {1, 300, 20'000}) {
      if (comm.global_rank() == 0) {
        std::vector<Numbers> values;
        std::vector<Message> messages;
        for (int tag = 0; tag < 5; ++tag) values.push_back(numbers(count, std::int64_t{10} * tag));
        values.push_back(numbers(count, 77));
        for (int tag = 0; tag < 5; ++tag) {
          messages.push_back(Message::send(in(values[static_cast<std::size_t>(tag)]), last, tag));
        }
        messages.push_back(Message::send(in(values.back()), last, 3));
        comm.exchange(messages);
      } else if (comm.global_rank() == last) {
        Numbers got(static_cast<std::size_t>(count));
        // Those with tag 3 in the order in which they were sent.
        for (const auto& [tag, first] : std::vector<std::pair<int, int>>{
                 {4, 40}, {3, 30}, {3, 77}, {0, 0}, {2, 20}, {1, 10}}) {
          comm.recv(out(got), 0, tag);
          ASSERT_EQ(got, numbers(count, first));
        }
      }
    }
  });
}

TEST_F(Messages, ManyShortMessagesKeepTheirOrder) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    constexpr int kMessages = 100;
    const int rank = comm.global_rank();
    const int peer = rank == 0 ? ranks() - 1 : 0;
    if (rank != 0 && rank != ranks() - 1) return;
    const Numbers mine = numbers(kMessages, std::int64_t{1000} * rank);
    Numbers theirs(mine.size());
    std::vector<Message> messages;
    for (std::size_t i = 0; i < kMessages; ++i) {
      messages.push_back(Message::send({&mine[i], 1, DType::i64}, peer, static_cast<int>(i) % 2));
      messages.push_back(Message::recv({&theirs[i], 1, DType::i64}, peer, static_cast<int>(i) % 2));
    }
    comm.exchange(messages);
    EXPECT_EQ(theirs, numbers(kMessages, std::int64_t{1000} * peer));
    comm.exchange({});
  });
}

TEST_F(Messages, FromAnySourceAndWithAnyTagOneLearnsWhatCame) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    for (const std::int64_t count : {1, 17, 30'000}) {
      comm.barrier();
      if (rank != 0) {
        comm.send(in(numbers(count, rank)), 0, 10 * rank);
        comm.send(in(numbers(count, 50 + rank)), 0, 5);
        continue;
      }
      std::vector<bool> heard(static_cast<std::size_t>(ranks()));
      for (int i = 1; i < ranks(); ++i) {
        Numbers got(static_cast<std::size_t>(count));
        Received received;
        comm.recv(out(got), kAnySource, kAnyTag, {}, &received);
        ASSERT_GE(received.source, 1);
        ASSERT_EQ(received.tag, 10 * received.source);
        ASSERT_EQ(got, numbers(count, received.source));
        ASSERT_FALSE(heard[static_cast<std::size_t>(received.source)]) << "it waits with tag 5";
        heard[static_cast<std::size_t>(received.source)] = true;
        comm.recv(out(got), received.source, 5, {}, &received);
        ASSERT_EQ(received.tag, 5);
        ASSERT_EQ(got, numbers(count, 50 + received.source));
      }
    }
  });
}

TEST_F(Messages, OfSeveralSendersEachHasItsTurn) {
  if (ranks() < 3) GTEST_SKIP() << "needs three ranks";
  on_ranks([](Communicator& comm) {
    constexpr int kRounds = 200;
    if (comm.global_rank() != 0) {
      const Numbers mine = numbers(1, comm.global_rank());
      for (int round = 0; round < kRounds; ++round) comm.send(in(mine), 0);
      return;
    }
    std::vector<int> counts(static_cast<std::size_t>(ranks()));
    int most_ahead = 0;
    for (int i = 0; i < kRounds * (ranks() - 1); ++i) {
      Numbers got(1);
      Received received;
      comm.recv(out(got), kAnySource, 0, {}, &received);
      ASSERT_EQ(got.front(), received.source);
      ++counts[static_cast<std::size_t>(received.source)];
      most_ahead = std::max(most_ahead, counts[static_cast<std::size_t>(received.source)]);
    }
    EXPECT_EQ(most_ahead, kRounds);
    for (int rank = 1; rank < ranks(); ++rank) {
      EXPECT_EQ(counts[static_cast<std::size_t>(rank)], kRounds);
    }
  });
}

TEST_F(Messages, ARankThatWaitsIsServedBeforeThoseThatWereServedMeanwhile) {
  if (ranks() < 3) GTEST_SKIP() << "needs three ranks";
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    if (rank != 0) {  // all of its messages are there at once
      const Numbers mine = numbers(2, rank);
      const std::vector<Message> messages{Message::send({&mine[0], 1, DType::i64}, 0),
                                          Message::send({&mine[1], 1, DType::i64}, 0),
                                          Message::send({&mine[0], 1, DType::i64}, 0, 1)};
      comm.exchange(messages);
      return;
    }
    Numbers got(1);
    // Once the last of each rank has been looked at, the others are known.
    std::vector<int> sources;
    for (int peer = 1; peer < ranks(); ++peer) comm.recv(out(got), peer, 1);
    for (int i = 0; i < 2 * (ranks() - 1); ++i) {
      Received received;
      comm.recv(out(got), kAnySource, 0, {}, &received);
      sources.push_back(received.source);
    }
    for (std::size_t i = 0; i < sources.size(); ++i) {
      EXPECT_EQ(sources[i], 1 + static_cast<int>(i) % (ranks() - 1));
    }
  });
}

TEST_F(Messages, AnExchangeTakesFromAnySource) {
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    const Numbers mine = numbers(5000, std::int64_t{100} * rank);
    std::vector<Numbers> got(static_cast<std::size_t>(ranks()), Numbers(mine.size()));
    std::vector<Received> received(got.size());
    std::vector<Message> messages;
    for (std::size_t i = 0; i < got.size(); ++i) {
      messages.push_back(Message::recv(out(got[i]), kAnySource, 9, &received[i]));
      messages.push_back(Message::send(in(mine), static_cast<int>(i), 9));
    }
    const Stream stream = Stream::worker();
    comm.exchange(messages, stream).wait();
    std::vector<int> sources;
    for (std::size_t i = 0; i < got.size(); ++i) {
      sources.push_back(received[i].source);
      EXPECT_EQ(received[i].tag, 9);
      EXPECT_EQ(got[i], numbers(5000, std::int64_t{100} * received[i].source));
    }
    std::sort(sources.begin(), sources.end());
    for (int peer = 0; peer < ranks(); ++peer) {
      EXPECT_EQ(sources[static_cast<std::size_t>(peer)], peer);
    }
  });
}

TEST_F(Messages, ExchangesRunBesideCollectives) {
  on_ranks([](Communicator& comm) {
    const int rank = comm.global_rank();
    const int next = (rank + 1) % ranks();
    const int previous = (rank + ranks() - 1) % ranks();
    const Stream stream = Stream::worker();
    const Numbers mine = numbers(100'000, rank);
    Numbers theirs(mine.size());
    for (int round = 0; round < 3; ++round) {
      std::fill(theirs.begin(), theirs.end(), -1);
      const std::vector<Message> messages{Message::send(in(mine), next, round),
                                          Message::recv(out(theirs), previous, round)};
      const Event exchanged = comm.exchange(messages, stream);
      for (int call = 0; call < 5; ++call) {
        Numbers sum(1000, 1);
        comm.all_reduce(out(sum));
        ASSERT_EQ(sum, Numbers(sum.size(), ranks()));
      }
      exchanged.wait();
      ASSERT_TRUE(theirs == numbers(100'000, previous));
    }
  });
}

}  // namespace
}  // namespace tutti::test
