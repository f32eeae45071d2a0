// Reads what the file system, the kernel and cgroups say about memory.
#include "base/available_memory.hpp"

#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/page_size.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr std::int64_t kUnlimited = std::numeric_limits<std::int64_t>::max();

/** One version of cgroups: where its files are, and what they are called. */
struct CgroupFiles {
  const char* mount;
  const char* limit;
  const char* usage;
  std::array<std::string_view, 2> reclaimable;  ///< entries of memory.stat: the page cache
};

constexpr CgroupFiles kVersion1{"/sys/fs/cgroup/memory",
                                "memory.limit_in_bytes",
                                "memory.usage_in_bytes",
                                {"total_inactive_file", "total_active_file"}};
constexpr CgroupFiles kVersion2{
    "/sys/fs/cgroup", "memory.max", "memory.current", {"inactive_file", "active_file"}};

/** The number that a file holds; nothing if it cannot be read or says "max". */
std::optional<std::int64_t> number_in(const std::filesystem::path& path) {
  std::int64_t number = 0;
  if (std::ifstream(path) >> number) return number;
  return std::nullopt;
}

/** The number after a word that starts a line; nothing if there is none. */
std::optional<std::int64_t> number_after(const std::filesystem::path& path, std::string_view word) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string name;
    std::int64_t number = 0;
    if (fields >> name >> number && name == word) return number;
  }
  return std::nullopt;
}

/** What the limit of one cgroup leaves over. */
std::int64_t left_in(const std::filesystem::path& group, const CgroupFiles& files) {
  const auto limit = number_in(group / files.limit);
  const auto usage = number_in(group / files.usage);
  if (!limit || !usage) return kUnlimited;
  std::int64_t used = *usage;
  for (const std::string_view entry : files.reclaimable) {
    used -= number_after(group / "memory.stat", entry).value_or(0);
  }
  return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, used));
}

/** What the limits of a cgroup and of all that it is in leave over. Inside a container its path may
 * be the host's, which is not there: then the mount itself is the container's cgroup. */
std::int64_t left_up_from(const std::string& root, const std::string& path,
                          const CgroupFiles& files) {
  const std::filesystem::path mount = root + files.mount;
  std::int64_t left = left_in(mount, files);
  std::filesystem::path group = mount;
  for (const auto& part : std::filesystem::path(path).relative_path()) {
    group /= part;
    left = std::min(left, left_in(group, files));
  }
  return left;
}

std::string text_of(std::int64_t bytes) {
  return bytes == kUnlimited ? "no limit of" : std::to_string(bytes);
}

}  // namespace

bool AvailableMemory::fits(std::int64_t bytes, int ranks) const {
  return bytes <= std::min(directory, memory) / ranks;
}

std::string AvailableMemory::describe() const {
  return "/dev/shm has " + text_of(directory) + " bytes free, the machine " + text_of(memory) +
         " bytes of memory";
}

AvailableMemory available_memory() {
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) != 0) throw SystemError("cannot examine /dev/shm", errno);
  AvailableMemory available;
  const bool unlimited = status.f_blocks == 0;  // mounted with size=0
  available.directory =
      unlimited ? kUnlimited : static_cast<std::int64_t>(status.f_bavail * status.f_frsize);
  available.memory = machine_memory();
  return available;
}

std::int64_t machine_memory(const std::string& root) {
  constexpr std::int64_t kKibi = 1024;
  std::int64_t available = kUnlimited;
  if (const auto kibis = number_after(root + "/proc/meminfo", "MemAvailable:")) {
    available = *kibis * kKibi;
  }
  // Lines are "number:controllers:path"; version 2 names no controllers.
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,") available = std::min(available, left_up_from(root, path, kVersion2));
    if (controllers.find(",memory,") != std::string::npos) {
      available = std::min(available, left_up_from(root, path, kVersion1));
    }
  }
  return available;
}

std::int64_t physical_memory() { return ::sysconf(_SC_PHYS_PAGES) * page_size(); }

std::int64_t shared_memory_size() {
  struct statvfs status {};
  if (::statvfs("/dev/shm", &status) != 0) throw SystemError("cannot examine /dev/shm", errno);
  const bool unlimited = status.f_blocks == 0;  // mounted with size=0
  return unlimited ? physical_memory()
                   : static_cast<std::int64_t>(status.f_blocks * status.f_frsize);
}

void MemoryBudget::spend(std::int64_t bytes) {
  constexpr std::int64_t kMostUnasked = std::int64_t{64} << 20U;
  constexpr std::int64_t kShare = 16;  // of what there is: others take some as well
  if (bytes > unasked_) {
    const std::int64_t available = machine_memory();
    if (bytes > available) {
      throw SystemError("cannot take " + std::to_string(bytes) +
                            " bytes of memory: the machine has " + std::to_string(available) +
                            " bytes left",
                        ENOMEM);
    }
    unasked_ = bytes + std::min(kMostUnasked, (available - bytes) / kShare);
  }
  unasked_ -= bytes;
}

}  // namespace tutti
