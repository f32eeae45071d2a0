// Fuzzes the values of the variables that a communicator reads, one per line.
#include "base/environment.hpp"
#include "comm/agreement.hpp"
#include "comm/communicator/options.hpp"

#include <array>
#include <cstdlib>
#include <string>

#include "base/log.hpp"
#include "comm/communicator/launcher.hpp"
#include "comm/sparse/plan.hpp"
#include "fuzz/fuzzer.hpp"
#include "tutti/error.hpp"

namespace tutti::fuzz {
namespace {

// TUTTI_ISA is read once in a process.
constexpr std::array kVariables{"TUTTI_TIMEOUT",
                                "TUTTI_GPU_CHECK",
                                "TUTTI_SPARSE",
                                "TUTTI_LOG",
                                "TUTTI_DEVICE",
                                "TUTTI_RANK",
                                "TUTTI_WORLD_SIZE",
                                "TUTTI_TICKET",
                                "OMPI_COMM_WORLD_RANK",
                                "OMPI_COMM_WORLD_SIZE",
                                "RANK",
                                "WORLD_SIZE",
                                "LOCAL_WORLD_SIZE",
                                "PADDLE_TRAINER_ENDPOINTS",
                                "PADDLE_TRAINER_ID",
                                "PADDLE_CURRENT_ENDPOINT",
                                "SLURM_PROCID",
                                "SLURM_STEP_NUM_TASKS",
                                "TUTTI_BETWEEN_HOSTS"};
constexpr int kGpus = 4;

}  // namespace

std::vector<Input> seeds() {
  return {input_of("300\n100\nauto\nwarn\ncpu"),
          input_of("0.001\nall\nsplit\ninfo\n3"),
          input_of("1e9\n0\ndense\nerror\n0"),
          input_of("0x1p4\n\n\n\n"),
          input_of(""),
          input_of("\n\n\n\n\n1\n2\n" + std::string(2 * UniqueId::kBytes, 'f')),
          input_of("\n\n\n\n\n\n\n\n1\n2\n1\n2\n"),
          input_of("\n\n\n\n\n\n\n\n\n\n3\n4\n4"),
          input_of("\n\n\n\n\n\n\n\n\n\n\n\n\n[::1]:1,[::1]:2\n1\n[::1]:2"),
          input_of("\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n1\n2"),
          input_of(std::string(18, '\n') + "tcp")};
}

void mend(Input&) {}

}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) try {
  using tutti::fuzz::expect;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const char* const variable : tutti::fuzz::kVariables) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    ::setenv(variable, std::string(line).c_str(), 1);
  }
  const std::chrono::milliseconds timeout = tutti::checked_timeout({});
  expect(timeout.count() >= 1 && timeout <= std::chrono::seconds(1'000'000'000), "the timeout");
  expect(tutti::gpu_calls_to_compare() >= 0, "the number of calls to compare");
  tutti::forced_sparse_algorithm();
  const tutti::Device device = tutti::choose_device(5, tutti::fuzz::kGpus);
  expect(device.kind == tutti::DeviceKind::cpu ||
             (device.ordinal >= 0 && device.ordinal < tutti::fuzz::kGpus),
         "the GPU");
  const tutti::Launch launch = tutti::find_launch();
  expect(launch.rank >= 0 && (launch.world_size == 0 || launch.rank < launch.world_size),
         "the rank");
  return 0;
} catch (const tutti::InvalidArgument& error) {
  return tutti::fuzz::refused(error);
}
