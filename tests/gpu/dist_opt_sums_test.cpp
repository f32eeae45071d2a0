// DistOpt's single sums on GPUs beside the same on CPUs.
#include <functional>

#include "gpu/gpu_ranks.hpp"
#include "multirank/sparse_model.hpp"

namespace tutti::test {
namespace {

class GpuDistOptSums : public GpuRankTest {
 protected:
  /** What is done with tensors, on either device. */
  using Sums = std::function<void(DistOpt&, std::span<const View> tensors, View accumulation)>;

  /** Runs `sums` on tensors of both devices, with an accumulation as long as all of them. */
  void expect_as_on_cpus(const Sums& sums) {
    on_gpus([&](Communicator& comm, const Stream& stream) {
      const std::vector<std::size_t> sizes{7, 0, 40'000, 1, 4099};
      Values values(sizes);
      std::size_t count = 0;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        values.arrays[i] = sparse_gradient(i, sizes[i], 1, comm.global_rank());
        count += sizes[i];
      }
      std::vector<float> residual(count, 12.0F);
      const GpuMemory memory(stream);
      std::vector<GpuMemory::Array<float>> there;
      std::vector<View> tensors;
      std::vector<View> gpu_tensors;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        there.push_back(memory.to_gpu(values.arrays[i]));
        tensors.push_back(values.view(i));
        gpu_tensors.emplace_back(there[i].data, there[i].count, DType::f32, stream.device());
      }
      const auto kept = memory.to_gpu(residual);
      DistOptions options;
      DistOpt cpu = over(comm, options);
      options.stream = stream;
      DistOpt gpu = over(comm, options);
      for (int round = 0; round < 2; ++round) {
        sums(cpu, tensors, std::span<float>(residual));
        cpu.wait();
        sums(gpu, gpu_tensors, View(kept.data, kept.count, DType::f32, stream.device()));
        gpu.wait();
      }
      // Whole numbers, whose sums are exact in any order.
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        ASSERT_EQ(memory.from_gpu(there[i]), values.arrays[i]) << i;
      }
      ASSERT_EQ(memory.from_gpu(kept), residual);
    });
  }
};

TEST_F(GpuDistOptSums, AllReduce) {
  expect_as_on_cpus([](DistOpt& opt, std::span<const View> tensors, View accumulation) {
    for (const View& tensor : tensors) opt.all_reduce(tensor);
    opt.all_reduce(accumulation);
  });
}

TEST_F(GpuDistOptSums, FusedAllReduce) {
  expect_as_on_cpus([](DistOpt& opt, std::span<const View> tensors, View accumulation) {
    opt.fused_all_reduce(tensors.first(2), false);
    opt.fused_all_reduce(tensors.subspan(2), false);  // the buffer grows
    opt.fused_all_reduce(tensors, true);
    opt.fused_all_reduce(std::span(&accumulation, 1), false);
    opt.fused_all_reduce(std::span(&accumulation, 1), true);
  });
}

TEST_F(GpuDistOptSums, HalfSums) {
  expect_as_on_cpus([](DistOpt& opt, std::span<const View> tensors, View accumulation) {
    opt.all_reduce_half(accumulation);
    opt.fused_all_reduce_half(tensors, false);
    opt.fused_all_reduce_half(tensors, true);
  });
}

TEST_F(GpuDistOptSums, Sparsification) {
  for (const bool top_k : {true, false}) {
    for (const double spars : {0.01, 1.0, 300.0}) {
      if (top_k && spars > 1.0) continue;
      SCOPED_TRACE(spars);
      expect_as_on_cpus([=](DistOpt& opt, std::span<const View> tensors, View accumulation) {
        opt.fused_sparsification(tensors, accumulation, spars, top_k);
      });
      expect_as_on_cpus([=](DistOpt& opt, std::span<const View> tensors, View accumulation) {
        opt.sparsification(tensors[2], accumulation.part(5, tensors[2].count), spars, top_k);
        opt.sparsification(tensors[4], std::nullopt, spars, top_k);
      });
    }
  }
}

TEST_F(GpuDistOptSums, OtherTypesAreCopiedAsTheyAre) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    const GpuMemory memory(stream);
    const auto sum = static_cast<std::int64_t>(comm.world_size() * (comm.world_size() + 1) / 2);
    const auto there =
        memory.to_gpu(std::vector<std::int64_t>(9, (std::int64_t{1} << 40) + comm.global_rank()));
    const View view(there.data, there.count, DType::i64, stream.device());
    DistOptions options;
    options.stream = stream;
    DistOpt opt = over(comm, options);
    opt.fused_all_reduce(std::span(&view, 1), false);
    opt.fused_all_reduce(std::span(&view, 1), true);
    opt.wait();
    const std::int64_t expected =
        (std::int64_t{1} << 40) * comm.world_size() + sum - comm.world_size();
    EXPECT_EQ(memory.from_gpu(there), std::vector<std::int64_t>(9, expected));
  });
}

TEST_F(GpuDistOptSums, RefusesAMixtureOfDevices) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    DistOptions options;
    options.stream = stream;
    DistOpt opt = over(comm, options);
    std::vector<float> values(4, 1.0F);
    const GpuMemory memory(stream);
    const auto there = memory.to_gpu(values);
    const std::vector<View> both{std::span<float>(values),
                                 {there.data, there.count, DType::f32, stream.device()}};
    EXPECT_TRUE(
        contains(message_of([&] { opt.fused_all_reduce(both, false); }), "tensor #1 is on GPU"));
    EXPECT_TRUE(contains(message_of([&] { opt.sparsification(both[1], both[0], 0.5, true); }),
                         "accumulation is on the CPU"));
  });
}

TEST_F(GpuDistOptSums, MemoryOfAnotherGpuIsRefusedBeforeAnythingChanges) {
  if (gpu_count() < 2) GTEST_SKIP() << "there is no other GPU";
  on_gpus([](Communicator& comm, const Stream& stream) {
    const auto view = [](const auto& array, Device device) {
      return View(array.data, array.count, DType::f32, device);
    };
    const Device own = stream.device();
    const Device other{DeviceKind::cuda, (own.ordinal + 1) % gpu_count()};
    const GpuMemory here(stream);
    const GpuMemory there(Stream::on(other));
    const std::vector<float> values(100, 3.0F);
    const auto sum = here.to_gpu(values);
    const auto tensor = there.to_gpu(values);
    const auto kept = there.to_gpu(values);
    const View far = view(tensor, other);
    comm.all_reduce(view(sum, own), Reduce::average).wait();  // the communicator is there now

    DistOpt opt = over(comm);
    const auto refused = [](const std::function<void()>& call) {
      EXPECT_TRUE(contains(message_of(call), "but the communicator is on GPU"));
    };
    for (const bool top_k : {true, false}) {
      refused([&] { opt.sparsification(far, view(kept, other), 0.5, top_k); });
    }
    refused([&] { opt.all_reduce(far); });
    refused([&] { opt.all_reduce_half(far); });
    refused([&] { opt.fused_all_reduce(std::span(&far, 1), false); });
    refused([&] { opt.register_parameters(std::vector<Parameter>{{far, "far"}}); });
    EXPECT_EQ(there.from_gpu(kept), values);
    EXPECT_EQ(there.from_gpu(tensor), values);

    opt.all_reduce(view(sum, own));
    opt.wait();
    EXPECT_EQ(here.from_gpu(sum),
              std::vector<float>(100, 3.0F * static_cast<float>(comm.world_size())));
  });
}

}  // namespace
}  // namespace tutti::test
