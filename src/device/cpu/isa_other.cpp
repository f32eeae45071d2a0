// A machine that is not x86-64 runs the portable kernels only.
#include "device/cpu/kernel_table.hpp"

namespace tutti::cpu {

const KernelTable* find_table(Isa isa) { return isa == Isa::portable ? &kPortableTable : nullptr; }

}  // namespace tutti::cpu
