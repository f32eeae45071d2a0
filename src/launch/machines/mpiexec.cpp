// Knows how mpiexec is called.
#include "launch/machines/mpiexec.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "launch/process/lists.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {

std::string mpi_version() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen("mpiexec --version 2>/dev/null", "r"),
                                                   &::pclose);
  std::array<char, 256> line{};
  if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return {};
  std::string text = line.data();
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

std::vector<std::string> mpiexec_words(const std::string& hostfile, const std::string& binding) {
  std::vector<std::string> words{"mpiexec"};
  if (::geteuid() == 0) words.emplace_back("--allow-run-as-root");
  words.insert(words.end(), {"--enable-recovery", "--oversubscribe", "--mca", "rmaps", "seq",
                             "--hostfile", hostfile, "--bind-to", binding, "--wdir",
                             std::filesystem::current_path().string()});
  return words;
}

FileDescriptor write_hostfile(const std::vector<std::string>& names) {
  FileDescriptor file(::memfd_create("tutti-hosts", MFD_CLOEXEC));
  std::string text;
  for (const std::string& name : names) text += name + "\n";
  if (!file || ::write(file.get(), text.data(), text.size()) != std::ssize(text)) {
    throw SystemError("cannot write the list of machines for mpiexec", errno);
  }
  return file;
}

std::string name_of_inherited(const FileDescriptor& file) {
  return "/proc/self/fd/" + std::to_string(file.get());
}

std::string mpiexec_said(std::string_view printed) {
  constexpr std::ptrdiff_t kFirst = 9;
  constexpr std::ptrdiff_t kLast = 8;
  std::vector<std::string> lines = split_list(printed, '\n');
  std::erase_if(lines, [](const std::string& line) {
    return line.find_first_not_of("- \t\r") == std::string::npos;
  });
  if (std::ssize(lines) > kFirst + kLast + 1) {
    lines.erase(lines.begin() + kFirst + 1, lines.end() - kLast);
    lines[kFirst] = "...";
  }
  return join_list(lines, "\n");
}

}  // namespace tutti::launch
