// A processor that is told nothing: the next look comes at once.
#include "device/cpu/relax.hpp"

namespace tutti::cpu {

void relax() {}

}  // namespace tutti::cpu
