// Communicators of GPUs that are not there: CUDA's runtime is tests/gpu/on_cpu's, NCCL the library
// that records the calls.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "gpu/on_cpu/gpus.hpp"
#include "nccl/fake_nccl.hpp"
#include "support/world.hpp"
#include "tutti/communicator.hpp"

namespace tutti::nccl {

using std::chrono::milliseconds;

inline constexpr int kGpus = 4;

/** Ranks are threads, each with a GPU of its own. */
class GpuCommunicatorTest : public ::testing::Test {
 protected:
  GpuCommunicatorTest() {
    ::setenv("TUTTI_NCCL_LIB", FAKE_NCCL, 1);
    FakeNccl& fake = *fake_nccl();
    fake.reset();
    fake.enqueue = [](int, cudaStream_t stream, const FakeNccl::Ended& ended) {
      on_cpu::hold_up(stream, ended);
    };
    on_cpu::set_gpus(kGpus);
    on_cpu::set_has_memory({});
  }
  void TearDown() override {
    fake_nccl()->abort_blocks = false;
    on_cpu::set_has_memory({});
    EXPECT_EQ(fake_nccl()->stuck, 0) << "an end was waited for in vain";
  }

  using Body = std::function<void(Communicator&, const Stream&)>;

  static void on_ranks(int ranks, const Body& body, milliseconds timeout = milliseconds(20000)) {
    const UniqueId id = UniqueId::create();
    test::on_threads(ranks, [&](int rank) {
      Communicator comm(rank, ranks, id, test::short_timeout(timeout));
      body(comm, Stream::on(comm.device()));
    });
  }

  /** Threads that end communicators may go on after these. */
  static void await_ends() {
    while (fake_nccl()->alive > 0) std::this_thread::sleep_for(milliseconds(1));
  }

  static View room(const Buffer& buffer) { return buffer.view(DType::f32); }
};

/** How long something takes. */
template <class Action>
milliseconds time_of(const Action& action) {
  const auto start = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
}

}  // namespace tutti::nccl
