// Creates, maps and removes shared memory objects.
#include "communicator/shm/segment.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>
#include <utility>

#include "communicator/log.hpp"
#include "communicator/text.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

constexpr const char* kDirectory = "/dev/shm";
constexpr std::string_view kPrefix = "tutti-";

using ObjectId = std::pair<dev_t, ino_t>;

/**
 * The mappings of this process. Ranks that are threads must see shared memory at one address:
 * otherwise neither the memory model nor a race detector knows that it is the same memory.
 */
class MappingTable {
 public:
  std::shared_ptr<Mapping> find_or_map(int fd, const struct stat& status) {
    const std::lock_guard lock(mutex_);
    std::erase_if(mappings_, [](const auto& entry) { return entry.second.expired(); });
    const ObjectId id{status.st_dev, status.st_ino};
    if (const auto found = mappings_.find(id); found != mappings_.end()) {
      // A mapping from before the object has grown is too short.
      auto mapping = found->second.lock();
      if (mapping && mapping->bytes() == status.st_size) return mapping;
    }
    const auto bytes = static_cast<std::size_t>(status.st_size);
    void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
      throw SystemError("cannot map " + std::to_string(bytes) + " bytes of shared memory", errno);
    }
    auto mapping = std::make_shared<Mapping>(static_cast<std::byte*>(base), status.st_size);
    mappings_[id] = mapping;
    return mapping;
  }

 private:
  std::mutex mutex_;
  std::map<ObjectId, std::weak_ptr<Mapping>> mappings_;
};

MappingTable& mapping_table() {
  static MappingTable table;
  return table;
}

struct stat status_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) throw SystemError("cannot examine shared memory", errno);
  return status;
}

/** Takes the shared lock; false if the object was swept away between its opening and the lock. */
bool lock_shared(int fd) {
  while (::flock(fd, LOCK_SH) != 0) {
    if (errno != EINTR) throw SystemError("cannot lock shared memory", errno);
  }
  return status_of(fd).st_nlink > 0;
}

}  // namespace

Mapping::~Mapping() { ::munmap(base_, static_cast<std::size_t>(bytes_)); }

Segment Segment::create(const std::string& name) {
  for (;;) {
    FileDescriptor fd(::shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!fd) throw SystemError("cannot create shared memory " + name, errno);
    if (lock_shared(fd.get())) return {name, std::move(fd)};
  }
}

Segment Segment::open(const std::string& name) {
  FileDescriptor fd(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (!fd) {
    if (errno == ENOENT) return {};
    throw SystemError("cannot open shared memory " + name, errno);
  }
  if (!lock_shared(fd.get())) return {};
  return {name, std::move(fd)};
}

void Segment::resize(std::int64_t bytes) const {
  if (::ftruncate(fd_.get(), bytes) != 0) {
    throw SystemError("cannot make shared memory of " + std::to_string(bytes) + " bytes", errno);
  }
}

void Segment::reserve(std::int64_t offset, std::int64_t bytes) const {
  if (bytes == 0) return;
  int error = EINTR;
  while (error == EINTR) error = ::posix_fallocate(fd_.get(), offset, bytes);
  if (error == 0) return;
  struct statvfs room {};
  std::string available = "an unknown number of";
  if (::fstatvfs(fd_.get(), &room) == 0) {
    available = std::to_string(room.f_bavail * room.f_frsize);
  }
  throw SystemError("cannot reserve " + std::to_string(bytes) + " bytes of shared memory: " +
                        kDirectory + " has " + available + " bytes free",
                    error);
}

std::int64_t Segment::bytes() const { return status_of(fd_.get()).st_size; }

std::shared_ptr<Mapping> Segment::map() const {
  return mapping_table().find_or_map(fd_.get(), status_of(fd_.get()));
}

void Segment::unlink() {
  if (!fd_) return;
  ::shm_unlink(name_.c_str());  // another rank may have been first
  fd_.reset(-1);
}

NameGuard::~NameGuard() {
  if (removes_) ::shm_unlink(name_.c_str());
}

std::string segment_name(std::string_view text) {
  std::array<char, 17> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx",
                static_cast<unsigned long long>(hash_text(text)));
  return "/" + std::string(kPrefix) + digits.data();
}

void sweep() noexcept {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(kDirectory), &::closedir);
  if (!directory) return;
  while (const dirent* entry = ::readdir(directory.get())) {
    const std::string_view name = entry->d_name;
    if (!name.starts_with(kPrefix)) continue;
    const FileDescriptor fd(::openat(::dirfd(directory.get()), entry->d_name,
                                     O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    struct stat status {};
    if (!fd || ::fstat(fd.get(), &status) != 0 || status.st_uid != ::geteuid()) continue;
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) continue;  // somebody lives
    ::unlinkat(::dirfd(directory.get()), entry->d_name, 0);
    log(LogLevel::info, "removed what killed processes left in shared memory");
  }
}

}  // namespace tutti::shm
