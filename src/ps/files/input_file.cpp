// Opens and reads files of checkpoints.
#include "ps/files/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/refuse.hpp"
#include "ps/files/format.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {

// O_NONBLOCK, so that a pipe is refused at once instead of waited for.
InputFile::InputFile(const std::filesystem::path& path)
    : path_(path.string()), file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  struct stat status {};
  if (!file_ || ::fstat(file_.get(), &status) != 0) {
    throw SystemError(path_ + ": cannot be read", errno);
  }
  if (!S_ISREG(status.st_mode)) refuse(path_, ": is not a regular file");
  bytes_ = status.st_size;
}

void InputFile::read(std::int64_t offset, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(file_.get(), bytes.data(), bytes.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw SystemError(path_ + ": cannot be read", errno);
    if (count == 0) refuse_damaged(path_, "it is cut short");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
    offset += count;
  }
}

}  // namespace tutti::ps
