// The build has no NCCL: GPUs are not connected.
#include "comm/nccl/connect.hpp"
#include "tutti/error.hpp"

namespace tutti::nccl {

std::unique_ptr<DeviceTransport> connect(Transport*, Device) {
  throw BackendUnavailable("tutti was built without NCCL: it cannot connect GPUs");
}

}  // namespace tutti::nccl
