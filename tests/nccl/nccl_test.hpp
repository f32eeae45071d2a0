// Ranks whose NCCL is the library that records the calls.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <sstream>
#include <string>
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
