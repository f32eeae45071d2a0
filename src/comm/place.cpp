// Hashes what identifies a machine, its shared memory and its processes.
#include "comm/place.hpp"

#include <algorithm>
#include <string>

#include "base/environment.hpp"
#include "base/system.hpp"
#include "base/text.hpp"

namespace tutti {

Place own_place(std::string_view machine) {
  const std::string host = boot_id() + " " + std::string(machine) + " " + identity_of("/dev/shm") +
                           " " + identity_of("/proc/self/ns/pid");
  const auto host_id = environment("TUTTI_HOST_ID");
  return {hash_text(host), host_id ? std::max<std::uint64_t>(1, hash_text(*host_id)) : 0};
}

}  // namespace tutti
