// Writes to terminals, pipes and files without waiting for them.
#include "launch/console.hpp"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace tutti::launch {

Sink::Sink(int descriptor)
    : descriptor_(descriptor), terminal_(::isatty(descriptor) == 1), skips_(terminal_) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return;
  device_ = status.st_dev;
  inode_ = status.st_ino;
  socket_ = S_ISSOCK(status.st_mode);
  if (terminal_ || S_ISFIFO(status.st_mode)) {
    // A new description of the file: the flag would else hold for all who share ours, the shell
    // among them. Where it cannot be had, writes may wait.
    const std::string path = "/proc/self/fd/" + std::to_string(descriptor);
    own_.reset(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  }
}

std::size_t Sink::columns() const {
  constexpr std::size_t kUsual = 80;
  winsize size{};
  if (::ioctl(descriptor_, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUsual;
  return size.ws_col;
}

bool Sink::same_as(const Sink& other) const {
  return device_ == other.device_ && inode_ == other.inode_;
}

void Sink::write(std::string_view text) {
  if (text.empty() || broken_) return;
  if (skips_ && !roomy()) {
    skipped_ += text.size();
    return;
  }
  if (skipped_ > 0) {
    kept_ += "\n[tutti run: " + std::to_string(std::exchange(skipped_, 0)) +
             " bytes are left out here, which were not read in time]\n";
  }
  at_line_start_ = text.back() == '\n';
  if (unwritten() == 0 && text.size() >= kLong) text.remove_prefix(write_some(text));
  kept_.append(text);
}

void Sink::flush() {
  while (unwritten() > 0 && !broken_) {
    const std::size_t bytes = write_some(std::string_view(kept_).substr(written_));
    if (bytes == 0) break;
    written_ += bytes;
  }
  if (broken_ || written_ > kept_.size() / 2) {
    kept_.erase(0, broken_ ? kept_.size() : written_);
    written_ = 0;
  }
}

std::size_t Sink::write_some(std::string_view text) {
  const ssize_t bytes =
      socket_ ? ::send(descriptor(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL)
              : ::write(descriptor(), text.data(), text.size());
  if (bytes >= 0) return static_cast<std::size_t>(bytes);
  if (errno != EAGAIN && errno != EINTR) broken_ = true;
  return 0;
}

}  // namespace tutti::launch
