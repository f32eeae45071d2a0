// The time-stamp counter of x86-64.
#include <cpuid.h>
#include <x86intrin.h>

#include <fstream>
#include <string>

#include "device/cpu/ticks.hpp"

namespace tutti::cpu {

bool has_ticks() {
  constexpr unsigned kPowerManagement = 0x80000007;
  constexpr unsigned kInvariant = 1U << 8U;
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  if (__get_cpuid(kPowerManagement, &a, &b, &c, &d) == 0 || (d & kInvariant) == 0) return false;
  // The kernel compares the cores' counters when it starts, and gives up a counter that is wrong.
  std::string source;
  std::getline(std::ifstream("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
               source);
  return source == "tsc";
}

std::uint64_t ticks() { return __rdtsc(); }

}  // namespace tutti::cpu
