// Chooses the arithmetic of a device.
#include "device/arithmetic.hpp"

namespace tutti {

std::shared_ptr<Arithmetic> make_arithmetic(const Stream& stream) {
  return stream.device().kind == DeviceKind::cpu ? cpu::make_arithmetic()
                                                 : cuda::make_arithmetic(stream);
}

}  // namespace tutti
