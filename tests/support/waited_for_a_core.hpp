// How long the machine has kept a process from running.
#pragma once

#include <cstdint>
#include <fstream>

namespace tutti::test {

/** For how long this process' first thread was ready to run but waited for a core, in nanoseconds;
 * 0 where the kernel does not tell. */
inline std::int64_t waited_for_a_core() {
  std::ifstream file("/proc/self/schedstat");
  std::int64_t ran = 0;
  std::int64_t waited = 0;
  file >> ran >> waited;
  return file ? waited : 0;
}

}  // namespace tutti::test
