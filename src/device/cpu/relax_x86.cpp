// The pause of x86-64.
#include <immintrin.h>

#include "device/cpu/relax.hpp"

namespace tutti::cpu {

void relax() { _mm_pause(); }

}  // namespace tutti::cpu
