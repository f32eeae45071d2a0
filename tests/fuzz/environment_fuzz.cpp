// Fuzzes the values of the variables that a communicator reads, one per line.
#include "base/environment.hpp"
#include "comm/agreement.hpp"
#include "comm/communicator/options.hpp"

#include <array>
#include <cstdlib>

#include "base/log.hpp"
#include "comm/sparse/plan.hpp"
#include "fuzz/fuzzer.hpp"
#include "tutti/error.hpp"

namespace tutti::fuzz {
namespace {

// TUTTI_ISA is read once in a process.
constexpr std::array<const char*, 5> kVariables{"TUTTI_TIMEOUT", "TUTTI_GPU_CHECK", "TUTTI_SPARSE",
                                                "TUTTI_LOG", "TUTTI_DEVICE"};
constexpr int kGpus = 4;

}  // namespace

std::vector<Input> seeds() {
  return {input_of("300\n100\nauto\nwarn\ncpu"), input_of("0.001\nall\nsplit\ninfo\n3"),
          input_of("1e9\n0\ndense\nerror\n0"), input_of("0x1p4\n\n\n\n"), input_of("")};
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
  return 0;
} catch (const tutti::InvalidArgument& error) {
  return tutti::fuzz::refused(error);
}
