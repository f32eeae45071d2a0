// The kernels for the instructions that every CPU of the target has.
#include "device/cpu/kernels_impl.hpp"

namespace tutti::cpu {

constinit const KernelTable kPortableTable = kKernels;

}  // namespace tutti::cpu
