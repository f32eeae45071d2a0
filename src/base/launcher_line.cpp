// Writes to the pipe of a launcher.
#include "base/launcher_line.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "base/environment.hpp"
#include "base/text.hpp"

namespace tutti {

void tell_launcher(std::string_view line) noexcept {
  const auto number = environment("TUTTI_PROGRESS_FD");
  const int pipe = number ? parse_number<int>(*number).value_or(-1) : -1;
  struct stat status {};
  if (pipe < 0 || ::fstat(pipe, &status) != 0 || !S_ISFIFO(status.st_mode)) return;
  std::array<char, 256> text{};
  if (line.size() >= text.size()) return;
  std::memcpy(text.data(), line.data(), line.size());
  text[line.size()] = '\n';
  // Whether it was written makes no difference to the rank. The pipe does not block.
  [[maybe_unused]] const auto written = ::write(pipe, text.data(), line.size() + 1);
}

}  // namespace tutti
