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

#include "tutti/error.hpp"

namespace tutti::ps {
namespace {

bool is_pipe_of(const FileDescriptor& pipe, const DoorbellAddress& address) {
  struct stat found {};
  return pipe && ::fstat(pipe.get(), &found) == 0 && found.st_dev == address.device &&
         found.st_ino == address.number;
}

}  // namespace

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
  const FileDescriptor process(static_cast<int>(::syscall(SYS_pidfd_open, address.process, 0)));
  const auto take = [&](std::int32_t descriptor) {
    return FileDescriptor(
        static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), descriptor, 0)));
  };
  // In this order: a Doorbell that goes closes its pipe first. So if the pipe is there after the
  // counter was taken, that was the counter, and not what had its number next.
  FileDescriptor counter = take(address.counter);
  if (counter && is_pipe_of(take(address.pipe), address)) return counter;
  return open_doorbell_pipe(address);
}

FileDescriptor open_doorbell_pipe(const DoorbellAddress& address) noexcept {
  if (address.process <= 0) return {};
  const std::string path =
      "/proc/" + std::to_string(address.process) + "/fd/" + std::to_string(address.pipe);
  // To be read from, too: the end of that process is no SIGPIPE then.
  FileDescriptor pipe(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
  if (!is_pipe_of(pipe, address)) return {};
  return pipe;
}

void ring(const FileDescriptor& doorbell) noexcept {
  // What a counter takes; to a pipe they are eight bytes. One that is full is readable.
  const std::uint64_t once = 1;
  [[maybe_unused]] const ssize_t written = ::write(doorbell.get(), &once, sizeof(once));
}

}  // namespace tutti::ps
