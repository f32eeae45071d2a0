// The kernels for AVX-512 (F, BW, VL, DQ).
#include "device/cpu/kernels_impl.hpp"

namespace tutti::cpu {

constinit const KernelTable kAvx512Table = kKernels;

}  // namespace tutti::cpu
