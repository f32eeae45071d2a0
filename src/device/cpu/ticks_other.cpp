// A processor whose counter is not used: the kernel's clock serves instead.
#include "device/cpu/ticks.hpp"

namespace tutti::cpu {

bool has_ticks() { return false; }

std::uint64_t ticks() { return 0; }

}  // namespace tutti::cpu
