// Bytes in a pipe. A byte over TCP would do, but takes three times as long.
#include "ps/link/doorbell.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <string>

#include "tutti/error.hpp"

namespace tutti::ps {

Doorbell::Doorbell() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw SystemError("cannot make a pipe", errno);
  out_ = FileDescriptor(ends[0]);
  in_ = FileDescriptor(ends[1]);
}

DoorbellAddress Doorbell::address() const {
  struct stat pipe {};
  if (::fstat(in_.get(), &pipe) != 0) return {};
  return {::getpid(), in_.get(), pipe.st_dev, pipe.st_ino};
}

void Doorbell::ring() const noexcept { ps::ring(in_); }

void Doorbell::clear() const noexcept {
  std::array<std::byte, 256> bytes;
  while (::read(out_.get(), bytes.data(), bytes.size()) == std::ssize(bytes)) {
  }
}

FileDescriptor open_doorbell(const DoorbellAddress& address) noexcept {
  if (address.process <= 0) return {};
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.descriptor);
  // To be read from, too: the end of that process is no SIGPIPE then.
  FileDescriptor pipe(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  struct stat found {};
  if (!pipe || ::fstat(pipe.get(), &found) != 0 || found.st_dev != address.device ||
      found.st_ino != address.number) {
    return {};
  }
  return pipe;
}

void ring(const FileDescriptor& doorbell) noexcept {
  const std::byte bell{};
  // A pipe that is full is readable.
  [[maybe_unused]] const ssize_t written = ::write(doorbell.get(), &bell, 1);
}

}  // namespace tutti::ps
