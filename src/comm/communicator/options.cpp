// Reads and checks what communicators are told by their options and by the environment.
#include "comm/communicator/options.hpp"

#include <string>

#include "base/default_timeout.hpp"
#include "base/environment.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "comm/agreement.hpp"
#include "comm/mpi/meeting/interface.hpp"
#include "comm/record/flight.hpp"
#include "comm/sparse/plan.hpp"
#include "device/cpu/kernels.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

std::chrono::milliseconds timeout_or_default(std::optional<std::chrono::milliseconds> option) {
  if (option) {
    if (option->count() <= 0 || *option > kLongestTimeout) {
      throw InvalidArgument("CommOptions::timeout is " + std::to_string(option->count()) +
                            " ms, but must be positive and at most 1e12");
    }
    return *option;
  }
  const auto text = environment("TUTTI_TIMEOUT");
  if (!text) return kDefaultTimeout;
  if (const auto timeout = parse_timeout(*text)) return *timeout;
  throw InvalidArgument("TUTTI_TIMEOUT is '" + *text +
                        "', but must be a number of seconds from 0.001 to 1e9");
}

}  // namespace

std::chrono::milliseconds checked_timeout(std::optional<std::chrono::milliseconds> option) {
  log_enabled(LogLevel::info);
  cpu::active_isa();
  forced_sparse_algorithm();
  mpi::asked_carrier();
  gpu_calls_to_compare();
  record::flight_folder();
  return timeout_or_default(option);
}

Device choose_device(int local_rank, int gpus) {
  const auto text = environment("TUTTI_DEVICE");
  if (text && *text == "cpu") return {};
  if (!text) return gpus == 0 ? Device{} : Device{DeviceKind::cuda, local_rank % gpus};
  const auto ordinal = parse_number<int>(*text);
  if (!ordinal || *ordinal < 0) {
    throw InvalidArgument("TUTTI_DEVICE is '" + *text + "', but must be cpu or a GPU's number");
  }
  if (*ordinal >= gpus) {
    throw InvalidArgument("TUTTI_DEVICE is " + *text + ", but there are " + std::to_string(gpus) +
                          " GPUs");
  }
  return {DeviceKind::cuda, *ordinal};
}

}  // namespace tutti
