// Hashes what identifies a machine, its shared memory and its processes.
#include "comm/place.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <string>

#include "base/environment.hpp"
#include "base/system.hpp"
#include "base/text.hpp"

namespace tutti {
namespace {

/** Tells devices of file systems and namespaces apart, within a machine that runs. */
std::string identity_of(const char* path) {
  struct stat status {};
  if (::stat(path, &status) != 0) return "-";
  return std::to_string(status.st_dev) + "." + std::to_string(status.st_ino);
}

}  // namespace

Place own_place(std::string_view machine) {
  const std::string host = boot_id() + " " + std::string(machine) + " " + identity_of("/dev/shm") +
                           " " + identity_of("/proc/self/ns/pid");
  const auto host_id = environment("TUTTI_HOST_ID");
  return {hash_text(host), host_id ? std::max<std::uint64_t>(1, hash_text(*host_id)) : 0};
}

}  // namespace tutti
