// The kernels for AVX2 and F16C.
#include "device/cpu/kernels_impl.hpp"

namespace tutti::cpu {

constinit const KernelTable kAvx2Table = kKernels;

}  // namespace tutti::cpu
