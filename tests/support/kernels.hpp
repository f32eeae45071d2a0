// Runs the CPU's reductions with the kernels of a given instruction set.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "device/cpu/kernel_table.hpp"
#include "device/cpu/kernels.hpp"

namespace tutti::test {

inline constexpr std::array<cpu::Isa, cpu::kIsaCount> kIsas{cpu::Isa::portable, cpu::Isa::avx2,
                                                            cpu::Isa::avx512};

/** The instruction sets that this machine runs. */
inline std::vector<cpu::Isa> available() {
  std::vector<cpu::Isa> result;
  for (const cpu::Isa isa : kIsas) {
    if (cpu::find_table(isa) != nullptr) result.push_back(isa);
  }
  return result;
}

/** The reduction of small lists of values. */
template <class T>
std::vector<T> reduce_values(cpu::Isa isa, const std::vector<std::vector<T>>& inputs,
                             const cpu::Combine& combine) {
  std::vector<T> out(inputs[0].size());
  void* out_data = out.data();
  std::vector<const void*> in_data;
  for (const auto& input : inputs) in_data.push_back(input.data());
  cpu::reduce(cpu::table(isa), std::span(&out_data, 1), in_data,
              static_cast<std::int64_t>(out.size()), DTypeOf<T>::value, combine);
  return out;
}

}  // namespace tutti::test
