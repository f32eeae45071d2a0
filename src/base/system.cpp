// Asks the kernel for random bytes, and /proc for the boot id.
#include "base/system.hpp"

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <iterator>

#include "tutti/error.hpp"

namespace tutti {

void fill_with_random(std::span<std::byte> bytes, const char* what) {
  // Up to 256 bytes come whole and uninterrupted once the kernel's generator is seeded.
  while (::getrandom(bytes.data(), bytes.size(), 0) != std::ssize(bytes)) {
    if (errno != EINTR) {
      throw SystemError(std::string("cannot get random numbers for ") + what, errno);
    }
  }
}

std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "this host";
  return name.data();
}

std::string identity_of(const char* path) {
  struct stat status {};
  if (::stat(path, &status) != 0) return "-";
  return std::to_string(status.st_dev) + "." + std::to_string(status.st_ino);
}

}  // namespace tutti
