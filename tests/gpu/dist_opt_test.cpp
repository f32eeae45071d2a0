// DistOpt's modes on GPUs beside the same on CPUs.
#include <cmath>
#include <string>

#include "gpu/gpu_ranks.hpp"
#include "multirank/sparse_model.hpp"

namespace tutti::test {
namespace {

const std::vector<std::size_t> kSizes{64, 5, 0, 4099, 30, 2000};

/** One step of a mode. */
using Step = std::function<void(DistOpt&, const Backward&)>;

class GpuDistOpt : public GpuRankTest {
 protected:
  static Values gradients(int step, int rank) {
    Values values(kSizes);
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      values.arrays[i] = sparse_gradient(i, kSizes[i], step, rank);
    }
    return values;
  }

  static void train_on_cpu(DistOpt& opt, Values& values, int first, int last, const Step& one) {
    for (int step = first; step < last; ++step) {
      const Values own = gradients(step, opt.global_rank());
      one(opt, [&](const Emit& emit) {
        for (std::size_t i = kSizes.size(); i-- > 0;) {
          emit(values.view(i), std::span<const float>(own.arrays[i]));
        }
      });
    }
  }

  /** Parameters in memory of a GPU. */
  struct OnGpu {
    OnGpu(const Stream& stream, const Values& start) : memory(stream) {
      for (const auto& array : start.arrays) {
        arrays.push_back(memory.to_gpu(array));
        const auto& last = arrays.back();
        views.emplace_back(last.data, last.count, DType::f32, stream.device());
      }
    }
    std::vector<Parameter> parameters() const {
      std::vector<Parameter> list;
      for (std::size_t i = 0; i < views.size(); ++i) list.push_back({views[i], Values::name(i)});
      return list;
    }
    Values read() const {
      Values values(kSizes);
      for (std::size_t i = 0; i < arrays.size(); ++i) values.arrays[i] = memory.from_gpu(arrays[i]);
      return values;
    }
    void train(DistOpt& opt, int first, int last, const Step& one) const {
      for (int step = first; step < last; ++step) {
        const OnGpu own(memory.stream(), gradients(step, opt.global_rank()));
        one(opt, [&](const Emit& emit) {
          for (std::size_t i = kSizes.size(); i-- > 0;) emit(views[i], own.views[i]);
        });
      }
    }
    GpuMemory memory;
    std::vector<GpuMemory::Array<float>> arrays;
    std::vector<View> views;
  };

  /** Whole numbers: no order of additions changes a sum, but rates and averages round. */
  static void expect_near(const Values& got, const Values& expected) {
    for (std::size_t i = 0; i < kSizes.size(); ++i) {
      for (std::size_t j = 0; j < kSizes[i]; ++j) {
        const float want = expected.arrays[i][j];
        ASSERT_NEAR(got.arrays[i][j], want, 1e-5F * (1.0F + std::fabs(want))) << i << ", " << j;
      }
    }
  }

  void expect_as_on_cpus(const Step& one, const DistOptions& options = {}) {
    on_gpus([&](Communicator& comm, const Stream& stream) {
      const SgdOptions sgd{.lr = 0.125F, .momentum = 0.5F, .weight_decay = 0.25F};
      Values values(kSizes, 1.0F);
      DistOptions on_stream = options;
      on_stream.stream = stream;
      DistOpt cpu = over(comm, std::make_shared<SGD>(sgd), options);
      DistOpt gpu = over(comm, std::make_shared<SGD>(sgd), on_stream);
      OnGpu there(stream, values);
      cpu.register_parameters(values.parameters());
      gpu.register_parameters(there.parameters());
      train_on_cpu(cpu, values, 0, 4, one);
      there.train(gpu, 0, 4, one);
      expect_near(there.read(), values);
      EXPECT_DOUBLE_EQ(gpu.statistics().density, cpu.statistics().density);
    });
  }
};

TEST_F(GpuDistOpt, FullUpdates) {
  expect_as_on_cpus([](DistOpt& opt, const Backward& pass) { opt.backward_and_update(pass); });
  expect_as_on_cpus([](DistOpt& opt, const Backward& pass) { opt.backward_and_update(pass, 70); });
}

TEST_F(GpuDistOpt, HalfUpdates) {
  expect_as_on_cpus([](DistOpt& opt, const Backward& pass) {
    opt.backward_and_update_half(pass, 70, true, 256.0F);
  });
}

TEST_F(GpuDistOpt, PartialUpdates) {
  expect_as_on_cpus([](DistOpt& opt, const Backward& pass) {
    opt.backward_and_partial_update(pass, 70);
    if (opt.communicator().world_size() > 1) opt.synchronize();
  });
}

TEST_F(GpuDistOpt, SparseUpdates) {
  struct Choice {
    double spars;
    bool top_k;
    bool correct;
  };
  for (const Choice choice : {Choice{0.05, true, true}, Choice{0.05, true, false},
                              Choice{300.0, false, true}, Choice{0.0, false, true}}) {
    SCOPED_TRACE(std::to_string(choice.spars));
    expect_as_on_cpus([=](DistOpt& opt, const Backward& pass) {
      opt.backward_and_sparse_update(pass, 70, choice.spars, choice.top_k, choice.correct);
    });
  }
  DistOptions options;
  options.sparse.momentum = 0.5F;
  options.sparse.clip_norm = 3000.0F;
  expect_as_on_cpus(
      [](DistOpt& opt, const Backward& pass) {
        opt.backward_and_sparse_update(pass, std::nullopt, 0.05, true);
      },
      options);
}

TEST_F(GpuDistOpt, GoesOnFromItsState) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    const Step one = [](DistOpt& opt, const Backward& pass) {
      opt.backward_and_sparse_update(pass, 70, 0.05, true);
    };
    DistOptions options;
    options.stream = stream;
    const auto sgd = [] {
      return std::make_shared<SGD>(SgdOptions{.lr = 0.125F, .momentum = 0.5F});
    };
    OnGpu whole(stream, Values(kSizes, 1.0F));
    DistOpt a = over(comm, sgd(), options);
    a.register_parameters(whole.parameters());
    whole.train(a, 0, 3, one);

    OnGpu resumed(stream, whole.read());
    DistOpt b = over(comm, sgd(), options);
    b.register_parameters(resumed.parameters());
    b.load_state(a.state());
    whole.train(a, 3, 5, one);
    resumed.train(b, 3, 5, one);
    EXPECT_EQ(resumed.read(), whole.read());
  });
}

TEST_F(GpuDistOpt, RegistersWhatTheFirstPassEmits) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    DistOptions options;
    options.stream = stream;
    OnGpu there(stream, Values(kSizes, 1.0F));
    DistOpt opt = over(comm, std::make_shared<SGD>(SgdOptions{.lr = 0.5F}), options);
    there.train(opt, 0, 1,
                [](DistOpt& one, const Backward& pass) { one.backward_and_update(pass); });
    Values expected(kSizes, 1.0F);
    for (int rank = 0; rank < comm.world_size(); ++rank) {
      const Values part = gradients(0, rank);
      for (std::size_t i = 0; i < kSizes.size(); ++i) {
        for (std::size_t j = 0; j < kSizes[i]; ++j) {
          expected.arrays[i][j] -= 0.5F * part.arrays[i][j] / static_cast<float>(comm.world_size());
        }
      }
    }
    expect_near(there.read(), expected);
  });
}

TEST_F(GpuDistOpt, AnOptimiserOfCpusIsRefused) {
  on_gpus([](Communicator& comm, const Stream& stream) {
    OnGpu there(stream, Values(kSizes, 1.0F));
    DistOpt opt = over(comm);  // Descent, which knows nothing of GPUs
    EXPECT_THROW(opt.register_parameters(there.parameters()), InvalidArgument);
  });
}

}  // namespace
}  // namespace tutti::test
