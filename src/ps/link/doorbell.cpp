// Counters and bytes in a pipe. A byte over TCP would do, but takes three times as long.
#include "ps/link/doorbell.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <string>
#include <utility>

#include "tutti/error.hpp"

namespace tutti::ps {

Doorbell::Doorbell() : counter_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!counter_) throw SystemError("cannot make an eventfd", errno);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    throw SystemError("cannot make a pipe", errno);
  out_ = FileDescriptor(ends[0]);
  in_ = FileDescriptor(ends[1]);
}

DoorbellAddress Doorbell::address() const {
  struct stat pipe {};
  if (::fstat(in_.get(), &pipe) != 0) return {};
  return {::getpid(), counter_.get(), in_.get(), pipe.st_dev, pipe.st_ino};
}

void Doorbell::ring() const noexcept { ps::ring(counter_); }

void Doorbell::clear() const noexcept {
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t counted = ::read(counter_.get(), &count, sizeof(count));
  std::array<std::byte, 256> bytes;
  while (::read(out_.get(), bytes.data(), bytes.size()) == std::ssize(bytes)) {
  }
}

FileDescriptor open_doorbell(const DoorbellAddress& address) noexcept {
  if (address.process <= 0) return {};
  // In this order: what is done with the process is done with the one that has the pipe.
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, address.process, 0)));
  FileDescriptor pipe = open_doorbell_pipe(address);
  if (!pipe) return {};
  FileDescriptor counter(
      static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), address.counter, 0)));
  return counter ? std::move(counter) : std::move(pipe);
}

FileDescriptor open_doorbell_pipe(const DoorbellAddress& address) noexcept {
  if (address.process <= 0) return {};
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.pipe);
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
  // What a counter takes; to a pipe they are eight bytes. One that is full is readable.
  const std::uint64_t once = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell.get(), &once, sizeof(once));
}

}  // namespace tutti::ps
