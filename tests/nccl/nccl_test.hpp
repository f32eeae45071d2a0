// Ranks whose NCCL is the library that records the calls.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/nccl/join.hpp"
#include "comm/nccl/transport.hpp"
#include "comm/shm/transport.hpp"
#include "nccl/fake_nccl.hpp"
#include "support/world.hpp"

namespace tutti::nccl {

using std::chrono::milliseconds;

inline constexpr Device kGpu{DeviceKind::cuda, 0};

/** What stands for a cudaStream_t. */
inline int stream = 0;

inline std::string address(const void* data) {
  std::ostringstream text;
  text << data;
  return text.str();
}

inline OwnGpu gpu_number(int number) {
  OwnGpu gpu;
  gpu.uuid[0] = static_cast<std::byte>(number);
  return gpu;
}

/** What only the thread that made it may call: as ranks that MPI allows no more. */
class OneThreaded final : public Transport {
 public:
  explicit OneThreaded(Transport* whole) : whole_(whole) {}

  int rank() const override { return whole_->rank(); }
  int size() const override { return whole_->size(); }
  int local_rank() const override { return whole_->local_rank(); }
  int local_size() const override { return whole_->local_size(); }
  bool shares_host(int rank) const override { return whole_->shares_host(rank); }
  std::string describe() const override { return whole_->describe(); }
  milliseconds timeout() const override { return whole_->timeout(); }
  bool any_thread() const override { return false; }
  void run(const Call& call) override { whole_->run(call); }
  Buffer allocate(std::int64_t bytes) override { return whole_->allocate(bytes); }
  std::unique_ptr<Transport> split(int color, int key) override {
    return whole_->split(color, key);
  }
  std::unique_ptr<Transport> group(std::span<const int> ranks) override {
    return whole_->group(ranks);
  }
  void pulse(milliseconds waited) override {
    ++(std::this_thread::get_id() == owner_ ? pulses : wrong_pulses);
    whole_->pulse(waited);
  }
  void abort(std::string_view reason) noexcept override { whole_->abort(reason); }

  std::atomic<int> pulses = 0;
  std::atomic<int> wrong_pulses = 0;  // on another thread

 private:
  Transport* whole_;
  const std::thread::id owner_ = std::this_thread::get_id();
};

/** Ranks are threads, each with a GPU of its own. */
class NcclTransportTest : public ::testing::Test {
 protected:
  NcclTransportTest() {
    ::setenv("TUTTI_NCCL_LIB", FAKE_NCCL, 1);
    ::unsetenv("TUTTI_GPU_CHECK");
    fake_nccl()->reset();
  }

  using Body = std::function<void(shm::ShmTransport& cpu_transport)>;

  static void on_hosts(int ranks, const Body& body, milliseconds timeout = milliseconds(20000)) {
    const UniqueId id = UniqueId::create();
    test::on_threads(ranks, [&](int rank) {
      std::vector<int> names(static_cast<std::size_t>(ranks));
      std::iota(names.begin(), names.end(), 0);
      shm::ShmTransport cpu_transport(id, rank, names, timeout);
      body(cpu_transport);
    });
  }

  static void on_ranks(int ranks, const std::function<void(NcclTransport&, int rank)>& body,
                       milliseconds timeout = milliseconds(20000)) {
    on_hosts(
        ranks,
        [&](shm::ShmTransport& cpu_transport) {
          NcclTransport transport(join(&cpu_transport, gpu_number(cpu_transport.rank())),
                                  &cpu_transport, kGpu);
          transport.use_stream(&stream);
          body(transport, cpu_transport.rank());
          cpu_transport.run(Call::barrier());  // nobody leaves before all have looked
        },
        timeout);
  }

  /** What one rank has called, after the start and before the end of its communicator. */
  static std::vector<std::string> calls_of(int rank) {
    const std::string prefix = std::to_string(rank) + ": ";
    std::vector<std::string> calls;
    for (const std::string& call : fake_nccl()->calls) {
      if (!call.starts_with(prefix)) continue;
      const std::string rest = call.substr(prefix.size());
      if (rest.starts_with("ncclCommInit") || rest == "ncclCommDestroy") continue;
      calls.push_back(rest);
    }
    return calls;
  }

  static long count(const std::string& call) {
    const auto& calls = fake_nccl()->calls;
    return std::count(calls.begin(), calls.end(), call);
  }

  std::array<float, 16> a_{};
  std::array<float, 16> b_{};
  const std::string at_a_ = address(a_.data());
  const std::string at_b_ = address(b_.data());
  View a(std::int64_t elements) { return {a_.data(), elements, DType::f32, kGpu}; }
  View b(std::int64_t elements) { return {b_.data(), elements, DType::f32, kGpu}; }
};

}  // namespace tutti::nccl
