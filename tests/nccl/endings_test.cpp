// Communicators end although NCCL waits for others, and one rank's failure is told to all.
#include <array>
#include <latch>
#include <optional>

#include "nccl/gpu_communicator_test.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {
namespace {

class Endings : public GpuCommunicatorTest {};

/** Too long for anybody to wait for an end. */
constexpr milliseconds kLong{5000};

TEST_F(Endings, InOppositeOrdersEnd) {
  fake_nccl()->destroy_waits = true;
  const UniqueId first = UniqueId::create();
  const UniqueId second = UniqueId::create();
  EXPECT_LT(time_of([&] {
              test::on_threads(2, [&](int rank) {
                std::optional<Communicator> a(std::in_place, rank, 2, first, test::short_timeout());
                std::optional<Communicator> b(std::in_place, rank, 2, second,
                                              test::short_timeout());
                const Stream stream = Stream::on(a->device());
                a->barrier(stream);
                b->barrier(stream).wait();
                (rank == 0 ? a : b).reset();
                (rank == 0 ? b : a).reset();
              });
            }),
            kLong);
  EXPECT_EQ(fake_nccl()->alive, 0);
}

TEST_F(Endings, OfOneRankDoNotWaitForAnother) {
  fake_nccl()->destroy_waits = true;
  std::latch left(2);
  const UniqueId id = UniqueId::create();
  test::on_threads(2, [&](int rank) {
    std::optional<Communicator> comm(std::in_place, rank, 2, id, test::short_timeout());
    const Stream stream = Stream::on(comm->device());
    comm->barrier(stream).wait();
    if (rank == 1) left.arrive_and_wait();
    EXPECT_LT(time_of([&] { comm.reset(); }), kLong);
    if (rank == 0) left.arrive_and_wait();
  });
}

TEST_F(Endings, DoNotKeepBackTheNewsOfALoss) {
  fake_nccl()->waits_for_peers = true;
  fake_nccl()->abort_blocks = true;
  std::latch launched(2);
  const auto whole = time_of([&] {
    on_ranks(2, [&](Communicator& comm, const Stream& stream) {
      const Buffer memory = stream.allocate(400);
      const Event sum = comm.all_reduce(room(memory), Reduce::sum, stream);
      launched.arrive_and_wait();
      if (comm.global_rank() == 1) return comm.abort("out of paper");
      const auto told = time_of([&] {
        try {
          sum.wait();
          ADD_FAILURE() << "it was not told";
        } catch (const PeerLost& error) {
          EXPECT_EQ(error.ranks(), std::vector<int>{1});
        }
      });
      EXPECT_LT(told, milliseconds(2000));
    });
  });
  EXPECT_LT(whole, kLong) << "both are destroyed";
  fake_nccl()->abort_blocks = false;
  await_ends();
}

TEST_F(Endings, MakeNoContextOnAnotherGpu) {
  ::setenv("TUTTI_DEVICE", "2", 1);
  fake_nccl()->use_gpu = [] { cudaFree(nullptr); };
  on_cpu::take_contexts();
  test::on_threads(1, [](int) {
    Communicator comm(0, 1, UniqueId::create());
    int on_stack = 0;
    EXPECT_EQ(device_of(&on_stack), Device{});
    const Buffer memory = comm.allocate(400, comm.device());
    const Buffer pinned = Buffer::pinned(64);
    comm.all_reduce(room(memory), Reduce::premul_sum(2.0));
    const Event sum = comm.all_reduce(room(memory), Reduce::sum, Stream::worker());
    sum.wait();
    const Stream stream = Stream::on(comm.device());
    const Event launched = comm.all_reduce(room(memory), Reduce::premul_sum(2.0), stream);
    const Buffer ours = stream.allocate(400);
    test::on_threads(1, [&](int) {  // where no GPU is current
      EXPECT_EQ(device_of(ours.data()), comm.device());
      launched.wait();
    });
  });
  EXPECT_EQ(on_cpu::take_contexts(), std::set<int>{2});
  EXPECT_EQ(fake_nccl()->alive, 0);
  ::unsetenv("TUTTI_DEVICE");
}

TEST_F(Endings, LoadKernelsBeforeAnythingIsLaunched) {
  std::atomic<std::size_t> loaded = 0;
  fake_nccl()->enqueue = [&](int, cudaStream_t, const FakeNccl::Ended&) {
    loaded = on_cpu::loaded_kernels();
  };
  on_ranks(2, [](Communicator& comm, const Stream& stream) { comm.barrier(stream).wait(); });
  EXPECT_GT(loaded, 10U);
}

TEST_F(Endings, OneRankAloneNeedsNoNccl) {
  on_ranks(1, [](Communicator& comm, const Stream& stream) {
    const Buffer from = stream.allocate(400);
    const Buffer to = stream.allocate(400);
    const std::array<std::int64_t, 1> counts{100};
    std::vector<float> values(100, 3.0F);
    stream.copy(room(from), std::span<const float>(values));
    const auto arrives = [&](const char* name, const auto& call) {
      stream.fill_with_zeros(room(to));
      call();
      values.assign(100, 0.0F);
      stream.copy(std::span<float>(values), room(to)).wait();
      EXPECT_EQ(values, std::vector<float>(100, 3.0F)) << name;
    };
    const View in = room(from);
    const View out = room(to);
    arrives("all_reduce", [&] { comm.all_reduce(in, out, Reduce::average, stream); });
    arrives("reduce", [&] { comm.reduce(in, out, 0, Reduce::sum, stream); });
    arrives("broadcast", [&] { comm.broadcast(in, out, 0, stream); });
    arrives("all_gather", [&] { comm.all_gather(in, out, stream); });
    arrives("all_gather_v", [&] { comm.all_gather_v(in, out, counts, stream); });
    arrives("gather", [&] { comm.gather(in, out, 0, stream); });
    arrives("scatter_v", [&] { comm.scatter_v(in, out, counts, 0, stream); });
    arrives("reduce_scatter", [&] { comm.reduce_scatter(in, out, Reduce::sum, stream); });
    arrives("all_to_all", [&] { comm.all_to_all(in, out, stream); });
    arrives("on the caller's thread", [&] { comm.all_reduce(in, out); });
    comm.all_reduce(out, Reduce::average, stream).wait();
    comm.barrier(stream).wait();
  });
  EXPECT_TRUE(fake_nccl()->calls.empty());
}

// --- What one rank lacks ------------------------------------------------------------------------

/** Whether this thread's rank has memory. */
thread_local bool has_memory = true;

class Lacks : public GpuCommunicatorTest {
 protected:
  Lacks() {
    on_cpu::set_has_memory([] { return has_memory; });
    fake_nccl()->has_memory = [] { return has_memory; };
  }
};

TEST_F(Lacks, RoomForAnAllToAllInPlaceIsEverybodysError) {
  on_ranks(3, [](Communicator& comm, const Stream& stream) {
    const Buffer memory = stream.allocate(std::int64_t{300} * 4);
    comm.barrier(stream).wait();
    has_memory = comm.global_rank() != 1;
    EXPECT_THROW(comm.all_to_all(room(memory), room(memory), stream), SystemError);
    has_memory = true;
    comm.all_to_all(room(memory), room(memory), stream).wait();
    comm.barrier();
  });
}

TEST_F(Lacks, RoomForAnAllToAllInPlaceIsKept) {
  on_ranks(2, [](Communicator& comm, const Stream& stream) {
    const Buffer memory = stream.allocate(400);
    for (int i = 0; i < 3; ++i) comm.all_to_all(room(memory), room(memory), stream).wait();
  });
  const auto& calls = fake_nccl()->calls;
  EXPECT_EQ(std::count(calls.begin(), calls.end(), "-1: ncclMemAlloc 400"), 2) << "once a rank";
}

TEST_F(Lacks, AContextIsEverybodysError) {
  std::atomic<int> told = 0;
  on_cpu::take_contexts();
  const UniqueId id = UniqueId::create();
  test::on_threads(3, [&](int rank) {
    Communicator comm(rank, 3, id, test::short_timeout());
    const View memory(&told, 1, DType::i32, comm.device());
    has_memory = rank != 1;
    try {
      comm.all_reduce(memory);
    } catch (const BackendUnavailable& error) {
      if (rank != 1) {
        EXPECT_NE(std::string(error.what()).find("rank 1 cannot use its GPU"), std::string::npos)
            << error.what();
      }
      ++told;
    }
    has_memory = true;
    comm.barrier();  // the ranks can go on without GPUs
  });
  EXPECT_EQ(told, 3);
}

TEST_F(Lacks, AnEventIsToldToTheOthers) {
  on_ranks(2, [](Communicator& comm, const Stream& stream) {
    const Buffer memory = stream.allocate(400);
    comm.barrier(stream).wait();
    comm.barrier();
    if (comm.global_rank() == 1) {
      std::vector<Event> taken;
      has_memory = false;
      EXPECT_THROW(
          for (;;) { taken.push_back(stream.submit([] {})); }, SystemError);
      EXPECT_THROW(comm.all_reduce(room(memory), Reduce::sum, stream), SystemError);
      has_memory = true;
      return;
    }
    try {
      comm.barrier();
      ADD_FAILURE() << "it was not told";
    } catch (const PeerLost& error) {
      EXPECT_NE(error.reason().find("cudaEventCreate"), std::string::npos) << error.reason();
    }
  });
}

}  // namespace
}  // namespace tutti::nccl
