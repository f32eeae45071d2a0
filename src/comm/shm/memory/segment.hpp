// Shared memory that several processes of a host map: POSIX shared memory objects and their names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/file_descriptor.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::shm {

enum class Access { read_write, read_only };

/** Owns a mapping of an object, or of a part of one. */
class Mapping {
 public:
  Mapping(std::byte* base, std::int64_t bytes) : base_(base), bytes_(bytes) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  std::byte* base() const { return base_; }
  std::int64_t bytes() const { return bytes_; }
  /** Gives the mapping away: it has moved. */
  std::byte* release() { return std::exchange(base_, nullptr); }

 private:
  std::byte* base_;
  std::int64_t bytes_;
};

/**
 * A named shared memory object, readable and writable by this user alone.
 *
 * Whoever has it open holds a shared lock on it until unlink(): an object that nobody has locked
 * is the remains of processes that were killed, and sweep() removes it. Nobody waits for a lock.
 */
class Segment {
 public:
  /** Creates an empty object. Throws SystemError; EEXIST if the name is in use, and not merely
   * left by processes that were killed. */
  static Segment create(const std::string& name);
  /** Opens an object that exists; an empty Segment if there is none, or only the remains of one,
   * which it removes. Throws SystemError; EACCES if it is another user's. */
  static Segment open(const std::string& name);

  Segment() = default;
  explicit operator bool() const { return static_cast<bool>(fd_); }

  /** Makes the object `bytes` zero bytes long, without reserving them. Throws SystemError. */
  void resize(std::int64_t bytes) const;
  /** Reserves a range of the object, which grows if it must, so that touching it cannot fail
   * later. Throws SystemError with the sizes if there is not enough. */
  void reserve(std::int64_t offset, std::int64_t bytes) const;
  /** Gives the memory of a range of whole pages back to the system: the range holds zeros then, and
   * touching it may fail. Where the system cannot, nothing happens. */
  void give_back(std::int64_t offset, std::int64_t bytes) const noexcept;
  std::int64_t bytes() const;
  /** Maps the whole object. Threads of one process that map the same object share the mapping: also
   * who only reads it shares that of one who writes. */
  std::shared_ptr<Mapping> map(Access access = Access::read_write) const;
  /** Maps a range so that writing to a page makes it a copy. It takes no memory, and cannot be
   * accessed, before the caller permits it by mprotect(). Throws SystemError. */
  std::unique_ptr<Mapping> map_copy(std::int64_t offset, std::int64_t bytes) const;
  /** Removes the name; mappings stay. Ends this process' lock. */
  void unlink();

 private:
  Segment(std::string name, FileDescriptor fd) : name_(std::move(name)), fd_(std::move(fd)) {}
  std::string name_;
  FileDescriptor fd_;
};

/** Removes a name when it goes out of scope, unless told to keep it. */
class NameGuard {
 public:
  explicit NameGuard(std::string name) : name_(std::move(name)) {}
  NameGuard(const NameGuard&) = delete;
  NameGuard& operator=(const NameGuard&) = delete;
  ~NameGuard();
  void keep_name() { removes_ = false; }

 private:
  std::string name_;
  bool removes_ = true;
};

/** The name of an object that the holders of a ticket share. See ticket_name(). */
std::string segment_name(const UniqueId& id, std::string_view purpose);

/** Removes this user's objects whose every process was killed, as far as they are among the first
 * kMostSwept names: others may have filled /dev/shm, and a start must not pay for it. Never throws.
 */
void sweep() noexcept;
inline constexpr int kMostSwept = 500;

}  // namespace tutti::shm
