// Collectives between GPUs, over the real NCCL: ranks that share a GPU, or have one each.
#include "gpu/gpu_ranks.hpp"
#include "support/data.hpp"

namespace tutti::test {
namespace {

class GpuRanks : public GpuRankTest {};

TEST_F(GpuRanks, SumsAreExactInEveryType) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32}) {
      for (const std::int64_t count : {1, 3, 4096, 100'003}) {
        Buffer host = Stream().allocate(count * size_of(dtype));
        const View there = host.view(dtype);
        fill(there, [&](std::int64_t i) {
          return contribution(dtype, ReduceKind::sum, comm.global_rank(), i);
        });
        const Buffer memory = stream.allocate(there.bytes());
        const View data = memory.view(dtype);
        stream.copy(data, there);
        comm.all_reduce(data, Reduce::sum, stream);
        stream.copy(there, data).wait();
        EXPECT_TRUE(holds(there, [&](std::int64_t i) {
          return reduced(dtype, Reduce::sum, comm.world_size(), i);
        })) << tutti::name_of(dtype);
      }
    }
  });
}

TEST_F(GpuRanks, EveryCollectiveMovesWhatItShould) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    const int ranks = comm.world_size();
    const auto rank = static_cast<float>(comm.global_rank());
    const auto check = [&](std::int64_t in_count, std::int64_t out_count, const auto& call,
                           const auto& expected) {
      const GpuMemory memory(stream);
      std::vector<float> values;
      for (std::int64_t i = 0; i < in_count; ++i) {
        values.push_back(100.0F * rank + static_cast<float>(i));
      }
      const auto in = memory.to_gpu(values);
      const auto out = memory.to_gpu(std::vector<float>(static_cast<std::size_t>(out_count), -1));
      call(View(in.data, in_count, DType::f32, stream.device()),
           View(out.data, out_count, DType::f32, stream.device()));
      const std::vector<float> got = memory.from_gpu(out);
      for (std::int64_t i = 0; i < out_count; ++i) {
        ASSERT_EQ(got[static_cast<std::size_t>(i)], expected(i)) << i;
      }
    };
    const std::int64_t n = 1001;
    const float rank_sum = 100.0F * static_cast<float>(ranks * (ranks - 1)) / 2.0F;
    const auto total = [&](std::int64_t i) {
      return rank_sum + static_cast<float>(ranks) * static_cast<float>(i);
    };
    const auto from = [&](std::int64_t i) {  // element i of rank i / n
      const std::int64_t sender = i / n;
      return 100.0F * static_cast<float>(sender) + static_cast<float>(i % n);
    };
    check(
        n, n, [&](View in, View out) { comm.all_reduce(in, out, Reduce::sum, stream); }, total);
    check(
        n, n, [&](View in, View out) { comm.broadcast(in, out, ranks - 1, stream); },
        [&](std::int64_t i) {
          return 100.0F * static_cast<float>(ranks - 1) + static_cast<float>(i);
        });
    check(
        n, n * ranks, [&](View in, View out) { comm.all_gather(in, out, stream); }, from);
    check(
        n * ranks, n, [&](View in, View out) { comm.reduce_scatter(in, out, Reduce::sum, stream); },
        [&](std::int64_t i) { return total(comm.global_rank() * n + i); });
    check(
        n * ranks, n * ranks, [&](View in, View out) { comm.all_to_all(in, out, stream); },
        [&](std::int64_t i) {
          const std::int64_t sender = i / n;
          return 100.0F * static_cast<float>(sender) +
                 static_cast<float>(comm.global_rank() * n + i % n);
        });
    const std::vector<std::int64_t> counts(static_cast<std::size_t>(ranks), n);
    check(
        n, n * ranks, [&](View in, View out) { comm.all_gather_v(in, out, counts, stream); }, from);
  });
}

TEST_F(GpuRanks, MessagesArrive) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    if (comm.world_size() < 2) return;
    comm.barrier(stream);
    const GpuMemory memory(stream);
    const auto data =
        memory.to_gpu(std::vector<float>(5000, static_cast<float>(comm.global_rank())));
    const View view(data.data, 5000, DType::f32, stream.device());
    if (comm.global_rank() == 0) comm.send(view, 1, 0, stream).wait();
    if (comm.global_rank() == 1) {
      comm.recv(view, 0, 0, stream).wait();
      EXPECT_EQ(memory.from_gpu(data), std::vector<float>(5000, 0.0F));
    }
  });
}

TEST_F(GpuRanks, TwoRanksExchangeInOneCall) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    comm.barrier(stream);
    const GpuMemory memory(stream);
    const int rank = comm.global_rank();
    const int next = (rank + 1) % comm.world_size();
    const int previous = (rank + comm.world_size() - 1) % comm.world_size();
    constexpr std::int64_t kCount = 2'000'000;
    const auto mine = memory.to_gpu(std::vector<float>(kCount, static_cast<float>(rank)));
    const auto theirs = memory.to_gpu(std::vector<float>(kCount, -1.0F));
    const std::vector<Message> messages{
        Message::send(View(mine.data, kCount, DType::f32, stream.device()), next),
        Message::recv(View(theirs.data, kCount, DType::f32, stream.device()), previous)};
    comm.exchange(messages, stream).wait();
    EXPECT_EQ(memory.from_gpu(theirs), std::vector<float>(kCount, static_cast<float>(previous)));
  });
}

TEST_F(GpuRanks, AllocatedMemoryIsZeroAndServesCollectives) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    const Buffer memory = comm.allocate(400'000, stream.device());
    std::vector<float> values(100'000, 1.0F);
    stream.copy(std::span<float>(values), memory.view(DType::f32)).wait();
    EXPECT_EQ(values, std::vector<float>(100'000, 0.0F));
    values.assign(values.size(), 2.0F);
    stream.copy(memory.view(DType::f32), std::span<const float>(values));
    comm.all_reduce(memory.view(DType::f32), Reduce::average, stream);
    stream.copy(std::span<float>(values), memory.view(DType::f32)).wait();
    EXPECT_EQ(values, std::vector<float>(100'000, 2.0F));
  });
}

TEST_F(GpuRanks, DisagreementIsTold) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    if (comm.world_size() < 2) return;
    const Buffer memory = stream.allocate(4000);
    const View all = memory.view(DType::f32);
    EXPECT_THROW(comm.all_reduce(all.part(0, 10 + comm.global_rank()), Reduce::sum, stream).wait(),
                 MismatchError);
  });
}

TEST_F(GpuRanks, ARankThatGivesUpIsNamed) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    if (comm.world_size() < 2) return;
    const Buffer memory = stream.allocate(4 << 20);
    const auto sum = [&] { comm.all_reduce(memory.view(DType::f32), Reduce::sum, stream).wait(); };
    if (comm.global_rank() == 0) {
      sum();
      comm.abort("out of paper");
      return;
    }
    try {
      sum();
      sum();
      ADD_FAILURE() << "it was not told";
    } catch (const PeerLost& error) {
      EXPECT_EQ(error.ranks(), std::vector<int>{0});
    }
  });
}

}  // namespace
}  // namespace tutti::test
