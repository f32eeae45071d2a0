// Creates files beside their final place, and renames them.
#include "tutti/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <random>
#include <string>

#include "base/file_descriptor.hpp"
#include "tutti/error.hpp"

namespace tutti {

// The folder stays open, so that its name may change its meaning without harm.
class OutputFile::Impl {
 public:
  explicit Impl(const std::filesystem::path& path) : path_(path.string()), name_(path.filename()) {
    if (name_.empty()) throw InvalidArgument("'" + path_ + "' is not the name of a file");
    const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : ".";
    folder_.reset(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder_ && errno == EACCES) {  // it may be written to all the same
      folder_.reset(::open(folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    }
    if (!folder_) fail();
    const std::optional<mode_t> permissions = look_at_old();
    std::random_device random;
    std::array<char, 32> temporary{};  // not made of the name, which may be as long as names can be
    std::snprintf(temporary.data(), temporary.size(), ".%08x%08x.tmp", random(), random());
    file_.reset(::openat(folder_.get(), temporary.data(),
                         O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file_) fail();
    temporary_ = temporary.data();
    if (permissions && ::fchmod(file_.get(), *permissions) != 0) {
      const int error = errno;
      ::unlinkat(folder_.get(), temporary_.c_str(), 0);
      errno = error;
      fail();
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    if (!temporary_.empty()) ::unlinkat(folder_.get(), temporary_.c_str(), 0);
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) fail();
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  // The content must be on the disk before the name is, and the name before we return.
  void commit() {
    if (::fsync(file_.get()) != 0) fail();
    if (::renameat(folder_.get(), temporary_.c_str(), folder_.get(), name_.c_str()) != 0) fail();
    temporary_.clear();
    // Some file systems cannot synchronise folders, and say EINVAL. EBADF: it may not be read.
    if (::fsync(folder_.get()) != 0 && errno != EINVAL && errno != EBADF) fail();
  }

 private:
  [[noreturn]] void fail() const { throw SystemError(path_ + ": cannot be written", errno); }

  /** The permissions of the file that is to be replaced, if it is this user's. Refuses what is
   * none: rename() would put the file in the place of a device or a link, such as /dev/stdout. */
  std::optional<mode_t> look_at_old() const {
    struct stat status {};
    if (::fstatat(folder_.get(), name_.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
      if (errno != ENOENT) fail();
      return std::nullopt;
    }
    if (S_ISREG(status.st_mode)) {
      refuse_anothers(status.st_uid);
      if (status.st_uid != ::geteuid()) return std::nullopt;
      return status.st_mode & (S_IRWXU | S_IRWXG | S_IRWXO);
    }
    const char* what = S_ISDIR(status.st_mode)   ? "a folder"
                       : S_ISLNK(status.st_mode) ? "a symbolic link"
                                                 : "not a regular file";
    throw InvalidArgument(path_ + ": cannot be replaced: is " + what);
  }

  /** Where the sticky bit is set, as in /tmp, only the owners of file and folder may replace it. */
  void refuse_anothers(uid_t owner) const {
    struct stat folder {};
    if (::fstat(folder_.get(), &folder) != 0) fail();
    const uid_t own = ::geteuid();
    if ((folder.st_mode & S_ISVTX) == 0 || own == 0 || own == owner || own == folder.st_uid) return;
    errno = EPERM;
    fail();
  }

  std::string path_;
  std::string name_;
  std::string temporary_;  // empty once it has its name
  FileDescriptor folder_;
  FileDescriptor file_;
};

OutputFile::OutputFile(const std::filesystem::path& path) : impl_(std::make_unique<Impl>(path)) {}
OutputFile::OutputFile(OutputFile&&) noexcept = default;
OutputFile& OutputFile::operator=(OutputFile&&) noexcept = default;
OutputFile::~OutputFile() = default;

void OutputFile::write(std::span<const std::byte> bytes) { impl_->write(bytes); }
void OutputFile::write(std::string_view text) { impl_->write(std::as_bytes(std::span(text))); }
void OutputFile::commit() { impl_->commit(); }

}  // namespace tutti
