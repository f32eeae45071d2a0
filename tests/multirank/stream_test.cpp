// Collectives on streams: overlap, order, events, and exceptions in events.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <span>
#include <stdexcept>
#include <vector>

#include "support/world.hpp"

namespace tutti::test {
namespace {

class Streams : public RankTest {};

using Data = std::vector<std::int32_t>;

View view(Data& data) { return View(std::span(data)); }

TEST_F(Streams, AWorkerReturnsBeforeTheCollectiveEnds) {
  on_ranks([](Communicator& comm) {
    const Stream stream = Stream::worker();
    // The stream is held up until the call has returned: only a queue lets that happen.
    std::promise<void> go;
    stream.submit([&] { go.get_future().wait(); });
    Data data(1000, comm.global_rank());
    const Event event = comm.all_reduce(view(data), {}, stream);
    EXPECT_FALSE(event.ready());
    EXPECT_EQ(data, Data(1000, comm.global_rank()));
    go.set_value();
    event.wait();
    EXPECT_TRUE(event.ready());
    EXPECT_EQ(data, Data(1000, ranks() * (ranks() - 1) / 2));
  });
}

TEST_F(Streams, TheInlineStreamIsDoneWhenTheCallReturns) {
  on_ranks([](Communicator& comm) {
    Data data(10, 1);
    EXPECT_TRUE(comm.all_reduce(view(data)).ready());
    EXPECT_EQ(data, Data(10, ranks()));
  });
}

TEST_F(Streams, EveryCollectiveRunsOnAWorker) {
  on_ranks([](Communicator& comm) {
    const Stream stream = Stream::worker();
    const auto n = static_cast<std::size_t>(ranks());
    const std::int32_t sum = ranks() * (ranks() + 1) / 2;
    Data mine(100, comm.global_rank() + 1);
    Data reduced(100), all(100 * n), gathered(100 * n), part(100), exchanged(100 * n);
    Data rooted = mine;
    comm.all_reduce(view(mine), view(reduced), {}, stream);
    comm.all_gather(view(mine), view(all), stream);
    {  // the counts are the call's own
      const std::vector<std::int64_t> counts(n, 100);
      comm.all_gather_v(view(mine), view(gathered), counts, stream);
    }
    comm.reduce_scatter(view(all), view(part), {}, stream);
    comm.all_to_all(view(all), view(exchanged), stream);
    comm.broadcast(view(rooted), ranks() - 1, stream);
    comm.reduce(view(rooted), view(rooted), 0, {}, stream);
    comm.barrier(stream).wait();
    EXPECT_EQ(reduced, Data(100, sum));
    EXPECT_EQ(all, gathered);
    EXPECT_EQ(part, Data(100, ranks() * (comm.global_rank() + 1)));
    EXPECT_EQ(exchanged, Data(100 * n, comm.global_rank() + 1));
    EXPECT_EQ(rooted, Data(100, comm.global_rank() == 0 ? ranks() * ranks() : ranks()));
  });
}

TEST_F(Streams, OperationsOfTwoStreamsKeepTheOrderOfTheCalls) {
  on_ranks([](Communicator& comm) {
    const Stream first = Stream::worker();
    const Stream second = Stream::worker();
    for (int round = 0; round < 20; ++round) {
      // The first stream is held up, so that an order by arrival would be the wrong one.
      std::promise<void> go;
      first.submit([&] { go.get_future().wait(); });
      Data a(10, 1), b(20, 2), c(30, 3);
      const Event one = comm.all_reduce(view(a), {}, first);
      const Event two = comm.all_reduce(view(b), {}, second);
      EXPECT_FALSE(two.ready());
      go.set_value();
      comm.all_reduce(view(c));  // inline, after both
      one.wait();
      two.wait();
      ASSERT_EQ(a, Data(10, ranks()));
      ASSERT_EQ(b, Data(20, 2 * ranks()));
      ASSERT_EQ(c, Data(30, 3 * ranks()));
    }
  });
}

TEST_F(Streams, AStreamWaitsForAnEventOfAnother) {
  on_ranks([](Communicator& comm) {
    const Stream communication = Stream::worker();
    const Stream computation = Stream::worker();
    Data data(100'000, 1);
    const Event reduced = comm.all_reduce(view(data), {}, communication);
    computation.wait(reduced);
    const Event doubled = computation.submit([&] {
      for (std::int32_t& value : data) value *= 2;
    });
    communication.wait(doubled);
    comm.all_reduce(view(data), {}, communication).wait();
    EXPECT_EQ(data, Data(100'000, 2 * ranks() * ranks()));
  });
}

TEST_F(Streams, ManyOperationsPipeline) {
  on_ranks([](Communicator& comm) {
    const Stream stream = Stream::worker();
    std::vector<Data> all(200, Data(500));
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::fill(all[i].begin(), all[i].end(), static_cast<std::int32_t>(i));
      comm.all_reduce(view(all[i]), {}, stream);
    }
    stream.synchronize();
    for (std::size_t i = 0; i < all.size(); ++i) {
      ASSERT_EQ(all[i], Data(500, static_cast<std::int32_t>(i) * ranks()));
    }
  });
}

TEST_F(Streams, AFailureStaysInTheEventsOfWhatFailed) {
  if (ranks() < 2) GTEST_SKIP() << "needs two ranks";
  on_ranks([](Communicator& comm) {
    const Stream stream = Stream::worker();
    Data data(100, 1);
    const Event good = comm.all_reduce(view(data), {}, stream);
    const Event bad =
        comm.all_reduce(View(data.data(), 10 + comm.global_rank(), DType::i32), {}, stream);
    EXPECT_THROW(bad.wait(), MismatchError);
    EXPECT_NO_THROW(good.wait());
    EXPECT_NO_THROW(stream.synchronize());
    EXPECT_EQ(data, Data(100, ranks()));
    // The stream itself still works.
    std::atomic<bool> ran = false;
    stream.submit([&] { ran = true; }).wait();
    EXPECT_TRUE(ran);
  });
}

TEST_F(Streams, OperationsOutliveTheCommunicatorObject) {
  on_ranks([](Communicator& comm) {
    const Stream stream = Stream::worker();
    Data data(100'000, 1);
    Event event;
    {
      Communicator moved = std::move(*comm.split(0, 0));
      event = moved.all_reduce(view(data), {}, stream);
    }
    event.wait();
    EXPECT_EQ(data, Data(100'000, ranks()));
    comm.barrier();
  });
}

}  // namespace
}  // namespace tutti::test
