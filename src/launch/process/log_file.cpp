// Writes the log of a rank.
#include "launch/process/log_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace tutti::launch {

LogFile::LogFile(const std::filesystem::path& path) {
  if (path.empty()) return;
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  file_.reset(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file_) fail(errno);
}

void LogFile::write(std::string_view text) {
  if (!file_) return;
  if (missing_ > 0) {
    const std::string note =
        "\n[tutti: " + std::to_string(missing_) + " bytes are missing here: " + reason_ + "]\n";
    if (!append(note)) {
      missing_ += text.size();
      return;
    }
    missing_ = 0;
  }
  append(text);
}

bool LogFile::append(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(file_.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      fail(errno);
      if (missing_ == 0) missing_ = text.size();
      return false;
    }
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

void LogFile::fail(int error) {
  reason_ = std::generic_category().message(error);
  if (!std::exchange(failed_, true)) news_ = reason_;
}

std::string LogFile::take_failure() { return std::exchange(news_, {}); }

}  // namespace tutti::launch
