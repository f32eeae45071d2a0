// Creates, maps and removes shared memory objects.
#include "comm/shm/memory/segment.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <exception>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/huge_pages.hpp"
#include "base/log.hpp"
#include "comm/ticket_name.hpp"
#include "tutti/error.hpp"

namespace tutti::shm {
namespace {

constexpr const char* kDirectory = "/dev/shm";
constexpr int kTries = 5;  // to make what another process may be about to remove
constexpr std::chrono::milliseconds kBetweenTries{1};

using ObjectId = std::pair<dev_t, ino_t>;

/**
 * The mappings of this process. Ranks that are threads must see shared memory at one address:
 * otherwise neither the memory model nor a race detector knows that it is the same memory.
 */
class MappingTable {
 public:
  std::shared_ptr<Mapping> find_or_map(int fd, const struct stat& status, Access access) {
    const std::lock_guard lock(mutex_);
    std::erase_if(mappings_, [](const auto& entry) { return entry.second.mapping.expired(); });
    const ObjectId id{status.st_dev, status.st_ino};
    if (const auto found = mappings_.find(id); found != mappings_.end()) {
      const bool permits = access == Access::read_only || found->second.access == access;
      // A mapping from before the object has grown is too short.
      auto mapping = found->second.mapping.lock();
      if (permits && mapping && mapping->bytes() == status.st_size) return mapping;
    }
    const int protection = access == Access::read_only ? PROT_READ : PROT_READ | PROT_WRITE;
    void* base = map_aligned(status.st_size, protection, MAP_SHARED, fd);
    if (base == MAP_FAILED) {
      throw SystemError("cannot map " + std::to_string(status.st_size) + " bytes of shared memory",
                        errno);
    }
    auto mapping = std::make_shared<Mapping>(static_cast<std::byte*>(base), status.st_size);
    mappings_[id] = {mapping, access};
    return mapping;
  }

 private:
  struct Entry {
    std::weak_ptr<Mapping> mapping;
    Access access;
  };

  std::mutex mutex_;
  std::map<ObjectId, Entry> mappings_;
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

bool has_name(int fd) { return status_of(fd).st_nlink > 0; }

/** Whether it got the lock. */
bool try_lock(int fd, int kind) {
  while (::flock(fd, kind | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return false;
    if (errno != EINTR) throw SystemError("cannot lock shared memory", errno);
  }
  return true;
}

/**
 * Removes an object of this user that no process uses; whether it did. Only who has locked an
 * object exclusively may do so by its name, which otherwise might be another's by then.
 */
bool remove_abandoned(int directory, const char* name) {
  struct stat status {};
  if (::fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) != 0) return false;
  if (status.st_uid != ::geteuid() || !S_ISREG(status.st_mode)) return false;
  const FileDescriptor fd(::openat(directory, name, O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (!fd || !try_lock(fd.get(), LOCK_EX) || !has_name(fd.get())) return false;
  if (::unlinkat(directory, name, 0) != 0) return false;
  log(LogLevel::info, "removed what killed processes left in shared memory");
  return true;
}

/**
 * A new object with a name, locked; nothing, and errno, if it cannot be made. It is locked before
 * it has its name, so that no sweep takes it for abandoned. That needs O_TMPFILE and /proc: without
 * them it has its name first, and is made again if a sweep was faster.
 */
FileDescriptor make_locked(int directory, const char* name) {
  FileDescriptor fd(::openat(directory, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fd && try_lock(fd.get(), LOCK_SH)) {
    const std::string self = "/proc/self/fd/" + std::to_string(fd.get());
    if (::linkat(AT_FDCWD, self.c_str(), directory, name, AT_SYMLINK_FOLLOW) == 0) return fd;
    if (errno == EEXIST) return {};
  }
  do {
    fd.reset(::openat(directory, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
  } while (fd && !(try_lock(fd.get(), LOCK_SH) && has_name(fd.get())));
  return fd;
}

/** While it lives, this thread is not interrupted. */
class SignalBlocker {
 public:
  SignalBlocker() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalBlocker(const SignalBlocker&) = delete;
  SignalBlocker& operator=(const SignalBlocker&) = delete;
  ~SignalBlocker() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

/** Returns an errno. A call that a signal interrupts gives back what it had reserved: under a
 * profiler's timer a long one would never end. So it is several, none of which is interrupted. */
int reserve_in_pieces(int fd, std::int64_t offset, std::int64_t bytes) {
  constexpr std::int64_t kPiece = std::int64_t{64} * 1024 * 1024;
  for (std::int64_t done = 0; done < bytes;) {
    const std::int64_t piece = std::min(kPiece, bytes - done);
    const SignalBlocker uninterrupted;
    const int error = ::posix_fallocate(fd, offset + done, piece);
    if (error == EINTR) continue;  // stopped and continued
    if (error != 0) return error;
    done += piece;
  }
  return 0;
}

}  // namespace

Mapping::~Mapping() {
  if (base_ != nullptr) ::munmap(base_, static_cast<std::size_t>(bytes_));
}

Segment Segment::create(const std::string& name) {
  const FileDescriptor directory(::open(kDirectory, O_PATH | O_DIRECTORY | O_CLOEXEC));
  const char* entry = name.c_str() + 1;  // without the slash
  int tries = kTries;
  do {
    if (const FileDescriptor made = make_locked(directory.get(), entry)) {
      NameGuard guard(name);
      Segment segment = open(name);  // the kernel shows mappings by the name they were opened by
      guard.keep_name();
      return segment;
    }
    if (errno != EEXIST) throw SystemError("cannot create shared memory " + name, errno);
    if (remove_abandoned(directory.get(), entry)) continue;
    std::this_thread::sleep_for(kBetweenTries);
  } while (--tries > 0);
  throw SystemError("cannot create shared memory " + name, EEXIST);
}

Segment Segment::open(const std::string& name) {
  FileDescriptor fd(::shm_open(name.c_str(), O_RDWR | O_CLOEXEC, 0));
  if (!fd) {
    if (errno == ENOENT) return {};
    throw SystemError("cannot open shared memory " + name, errno);
  }
  if (const uid_t owner = status_of(fd.get()).st_uid; owner != ::geteuid()) {
    throw SystemError(
        "shared memory " + name + " is user " + std::to_string(owner) + "'s, not this user's",
        EACCES);
  }
  if (try_lock(fd.get(), LOCK_EX)) {  // nobody has it: whose it was were killed
    if (has_name(fd.get())) ::shm_unlink(name.c_str());
    return {};
  }
  if (!try_lock(fd.get(), LOCK_SH) || !has_name(fd.get())) return {};
  return {name, std::move(fd)};
}

void Segment::resize(std::int64_t bytes) const {
  if (::ftruncate(fd_.get(), bytes) != 0) {
    throw SystemError("cannot make shared memory of " + std::to_string(bytes) + " bytes", errno);
  }
}

void Segment::reserve(std::int64_t offset, std::int64_t bytes) const {
  if (bytes == 0) return;
  const int error = reserve_in_pieces(fd_.get(), offset, bytes);
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

void Segment::give_back(std::int64_t offset, std::int64_t bytes) const noexcept {
  if (bytes > 0) ::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
}

std::int64_t Segment::bytes() const { return status_of(fd_.get()).st_size; }

std::shared_ptr<Mapping> Segment::map(Access access) const {
  return mapping_table().find_or_map(fd_.get(), status_of(fd_.get()), access);
}

std::unique_ptr<Mapping> Segment::map_copy(std::int64_t offset, std::int64_t bytes) const {
  // Without access: under mlockall() the pages would be copied at once.
  void* base =
      ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_NONE, MAP_PRIVATE, fd_.get(), offset);
  if (base == MAP_FAILED) {
    throw SystemError("cannot map " + std::to_string(bytes) + " bytes of shared memory", errno);
  }
  return std::make_unique<Mapping>(static_cast<std::byte*>(base), bytes);
}

void Segment::unlink() {
  if (!fd_) return;
  // Another rank may have been first, and have given the name to the next attempt.
  if (has_name(fd_.get())) ::shm_unlink(name_.c_str());
  fd_.reset(-1);
}

NameGuard::~NameGuard() {
  if (removes_) ::shm_unlink(name_.c_str());
}

std::string segment_name(const UniqueId& id, std::string_view purpose) {
  return "/" + ticket_name(id, purpose);
}

void sweep() noexcept {
  const std::unique_ptr<DIR, int (*)(DIR*)> directory(::opendir(kDirectory), &::closedir);
  if (!directory) return;
  try {
    for (int looked_at = 0; looked_at < kMostSwept; ++looked_at) {
      const dirent* entry = ::readdir(directory.get());
      if (entry == nullptr) return;
      if (!std::string_view(entry->d_name).starts_with(kNamePrefix)) continue;
      remove_abandoned(::dirfd(directory.get()), entry->d_name);
    }
  } catch (const std::exception& error) {  // it costs memory, but nothing else
    log(LogLevel::warn, std::string_view(error.what()));
  }
}

}  // namespace tutti::shm
