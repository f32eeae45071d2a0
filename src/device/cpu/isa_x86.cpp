// Which instruction sets this x86-64 machine has.
#include "device/cpu/kernel_table.hpp"

namespace tutti::cpu {

const KernelTable* find_table(Isa isa) {
  switch (isa) {
    case Isa::portable:
      return &kPortableTable;
    case Isa::avx2:  // every CPU with AVX2 has F16C
      return __builtin_cpu_supports("avx2") ? &kAvx2Table : nullptr;
    case Isa::avx512:
      break;
  }
  const bool supported = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  return supported ? &kAvx512Table : nullptr;
}

}  // namespace tutti::cpu
