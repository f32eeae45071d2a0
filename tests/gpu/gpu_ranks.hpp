// A test whose ranks work on GPUs.
#pragma once

#include "gpu/gpu_test.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::test {

/** Skips its tests where there is no GPU, or no NCCL. */
class GpuRankTest : public RankTest {
 protected:
  using GpuBody = std::function<void(Communicator&, const Stream&)>;

  void SetUp() override {
    if (gpu_count() == 0) GTEST_SKIP() << "no GPU: nothing was tested";
  }

  /** Runs `body` on every rank with a stream of its GPU. The number of ranks is noted for
   * --gtest_output: a launcher that is not understood makes every process a world of its own. */
  void on_gpus(const GpuBody& body) {
    on_ranks([&](Communicator& comm) {
      RecordProperty("world_size", comm.world_size());
      ASSERT_EQ(comm.world_size(), world().ranks);
      body(comm, Stream::on(comm.device()));
    });
  }
};

}  // namespace tutti::test
