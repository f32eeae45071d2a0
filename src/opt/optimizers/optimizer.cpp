// What optimisers have in common.
#include "tutti/optimizer.hpp"

#include <string>

#include "tutti/error.hpp"

namespace tutti {

void Optimizer::place(const Stream& stream) {
  if (stream.device().kind == DeviceKind::cpu) return;
  throw InvalidArgument("the optimiser updates CPU memory alone, not that of device cuda:" +
                        std::to_string(stream.device().ordinal));
}

}  // namespace tutti
