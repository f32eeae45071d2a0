// What an abort has ended looks to CUDA like what has ended by itself.
#include <array>
#include <latch>
#include <optional>
#include <thread>

#include "nccl/gpu_communicator_test.hpp"
#include "tutti/dist_opt.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

class AbortedWork : public GpuCommunicatorTest {
 protected:
  /** Runs `body` on rank 0 of two, with work under way that only an abort ends. */
  static void in_the_middle(
      const std::function<void(Communicator&, const Stream&, const Event&)>& body) {
    fake_nccl()->waits_for_peers = true;
    std::latch launched(2);
    std::latch done(2);
    on_ranks(2, [&](Communicator& comm, const Stream& stream) {
      const Buffer memory = stream.allocate(400);
      const Event sum = comm.all_reduce(room(memory), Reduce::sum, stream);
      launched.arrive_and_wait();
      if (comm.global_rank() == 0) body(comm, stream, sum);
      done.arrive_and_wait();
      comm.abort("the test is over");
    });
  }
};

TEST_F(AbortedWork, ThrowsIfItIsFirstSeenToEndAfterTheAbort) {
  in_the_middle([](Communicator& comm, const Stream&, const Event& sum) {
    EXPECT_FALSE(sum.ready());
    comm.abort("out of paper");
    EXPECT_TRUE(sum.ready());
    EXPECT_THROW(sum.wait(), CommunicationError);
    EXPECT_THROW(sum.wait(), CommunicationError) << "for ever";
  });
}

TEST_F(AbortedWork, ThrowsWhereAnotherThreadAborts) {
  in_the_middle([](Communicator& comm, const Stream&, const Event& sum) {
    std::thread other([&] { comm.abort("out of paper"); });
    try {
      sum.wait();
      ADD_FAILURE() << "it was not told";
    } catch (const CommunicationError& error) {
      EXPECT_NE(std::string(error.what()).find("out of paper"), std::string::npos) << error.what();
    }
    other.join();
  });
}

TEST_F(AbortedWork, ThrowsForASecondEventAndWhatIsQueuedBehind) {
  in_the_middle([](Communicator& comm, const Stream& stream, const Event& sum) {
    const Stream other = Stream::on(comm.device());
    const Event second = stream.submit([] {});
    other.wait(sum);
    const Event behind = other.submit([] {});
    comm.abort("out of paper");
    EXPECT_THROW(sum.wait(), CommunicationError);
    EXPECT_THROW(second.wait(), CommunicationError);
    EXPECT_THROW(behind.wait(), CommunicationError);
  });
}

TEST_F(AbortedWork, ThrowsForWhatIsQueuedBehindOnAStreamThatIsBorrowedAnew) {
  in_the_middle([](Communicator& comm, const Stream&, const Event& sum) {
    const Device device = comm.device();
    Stream::borrow(device, nullptr).wait(sum);
    const Event behind = Stream::borrow(device, nullptr).submit([] {});
    comm.abort("out of paper");
    EXPECT_THROW(behind.wait(), CommunicationError);
    // Who has been told may go on with the stream.
    EXPECT_NO_THROW(Stream::borrow(device, nullptr).submit([] {}).wait());
  });
}

TEST_F(AbortedWork, ThrowsAfterItsCommunicatorWasDestroyed) {
  fake_nccl()->waits_for_peers = true;
  std::array<std::optional<Event>, 2> sums;
  std::array<Buffer, 2> memory;
  on_ranks(2, [&](Communicator& comm, const Stream& stream) {
    const auto rank = static_cast<std::size_t>(comm.global_rank());
    memory[rank] = stream.allocate(400);
    sums[rank] = comm.all_reduce(room(memory[rank]), Reduce::sum, stream);
  });
  for (const auto& sum : sums) EXPECT_THROW(sum->wait(), CommunicationError);
}

TEST_F(AbortedWork, ThatHadEndedBeforeStaysGood) {
  on_ranks(2, [](Communicator& comm, const Stream& stream) {
    const Buffer memory = stream.allocate(400);
    const Event sum = comm.all_reduce(room(memory), Reduce::sum, stream);
    EXPECT_TRUE(sum.ready());
    comm.barrier();
    comm.abort("out of paper");
    EXPECT_NO_THROW(sum.wait());
    EXPECT_THROW(stream.submit([] {}).wait(), CommunicationError);
  });
}

TEST_F(AbortedWork, BreaksNoLaterCommunicatorOfItsGpu) {
  std::latch summed(2);
  on_ranks(2, [&](Communicator& comm, const Stream& stream) {
    const Buffer memory = stream.allocate(400);
    comm.all_reduce(room(memory));
    summed.arrive_and_wait();
    comm.abort("out of paper");
  });
  for (int i = 0; i < 2; ++i) {
    on_ranks(2, [](Communicator& comm, const Stream& stream) {
      const Buffer memory = stream.allocate(400);
      EXPECT_NO_THROW(comm.all_reduce(room(memory)));
      EXPECT_NO_THROW(comm.barrier());
    });
  }
}

TEST_F(AbortedWork, OnTheDefaultStreamIsToldToTheNextCallAndBreaksItsOwnCommunicatorAlone) {
  std::latch summed(2);
  on_ranks(2, [&](Communicator& comm, const Stream& stream) {
    const Buffer memory = stream.allocate(400);
    comm.all_reduce(room(memory), Reduce::sum, Stream::borrow(comm.device(), nullptr));
    summed.arrive_and_wait();
    comm.abort("out of paper");
  });
  on_ranks(2, [](Communicator& comm, const Stream& stream) {
    const Buffer memory = stream.allocate(400);
    EXPECT_THROW(comm.all_reduce(room(memory)), CommunicationError);
    EXPECT_NO_THROW(comm.all_reduce(room(memory)));
    EXPECT_NO_THROW(comm.barrier());
  });
}

TEST_F(AbortedWork, MakesDistOptsWaitThrowAndThrowAgain) {
  fake_nccl()->waits_for_peers = true;
  const UniqueId id = UniqueId::create();
  std::latch started(2);
  std::latch done(2);
  test::on_threads(2, [&](int rank) {
    const auto comm = std::make_shared<Communicator>(rank, 2, id, test::short_timeout());
    const Stream stream = Stream::on(comm->device());
    const Buffer memory = stream.allocate(400);
    const Buffer more = stream.allocate(400);
    DistOpt dist_opt(std::make_shared<SGD>(SgdOptions{}), comm, {.stream = stream});
    dist_opt.all_reduce(room(memory));
    dist_opt.all_reduce(room(more));
    started.arrive_and_wait();
    if (rank == 0) {
      std::thread other([&] { comm->abort("out of paper"); });
      EXPECT_THROW(dist_opt.wait(), CommunicationError);
      EXPECT_THROW(dist_opt.wait(), CommunicationError);
      other.join();
    }
    done.arrive_and_wait();
    comm->abort("the test is over");
  });
}

TEST_F(AbortedWork, IsLookedAfterOnEveryHandleOfItsStream) {
  fake_nccl()->waits_for_peers = true;
  on_ranks(
      2,
      [](Communicator& comm, const Stream& stream) {
        const Buffer memory = stream.allocate(400);
        comm.all_reduce(room(memory), Reduce::sum, Stream::borrow(comm.device(), stream.native()));
        const Event all = Stream::borrow(comm.device(), stream.native()).submit([] {});
        EXPECT_THROW(all.wait(), PeerLost) << "at the deadline";
      },
      milliseconds(3000));
}

TEST_F(AbortedWork, IsLookedAfterOnAStreamThatACommunicatorWatches) {
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  on_ranks(2, [&](Communicator& comm, const Stream& stream) {
    comm.watch(stream);
    if (comm.global_rank() == 1) return comm.abort("out of paper");
    on_cpu::hold_up(static_cast<cudaStream_t>(stream.native()), ended);  // what tutti cannot see
    EXPECT_THROW(stream.submit([] {}).wait(), PeerLost);
  });
}

}  // namespace
}  // namespace tutti::nccl
