// The program `tutti`: starts the ranks of a job, and is the process under which each runs.
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "launch/machines/answer.hpp"
#include "launch/meeting.hpp"
#include "launch/process/guard.hpp"
#include "launch/process/process.hpp"
#include "launch/run.hpp"
#include "launch/wrapper.hpp"

namespace {

constexpr const char* kHelp =
    "tutti run [OPTIONS] PROGRAM [ARGUMENTS]   starts the ranks of a job (tutti run --help)\n"
    "tutti rank -- PROGRAM [ARGUMENTS]         runs one rank, which ends with its parent\n"
    "tutti --version\n";

constexpr int kUsage = 2;

int run_command(const std::string& command, const std::vector<std::string>& arguments) {
  if (command == "run") return tutti::launch::run(arguments);
  if (command == "rank") {
    const pid_t parent = ::getppid();
    if (arguments.size() == 2 && arguments[0] == "--connect") {
      if (const auto guard = tutti::launch::go_on_guarded()) {
        tutti::launch::run_wrapper(tutti::launch::join_launcher(arguments[1]), *guard);
      }
      return 0;  // the launcher knows; mpiexec would wait for what it cannot mend
    }
    return tutti::launch::run_wrapper(tutti::launch::parse_wrapper(arguments), parent);
  }
  if (command == "check") return tutti::launch::run_check(arguments);
  if (command == "--version") {
    std::puts("tutti " TUTTI_VERSION);
    return 0;
  }
  if (command == "--help" || command == "-h" || command == "help") {
    std::fputs(kHelp, stdout);
    return 0;
  }
  std::string wrong = "no command is given";
  if (!command.empty()) wrong = "there is no command '" + command + "'";
  std::fprintf(stderr, "tutti: %s; these are known:\n%s", wrong.c_str(), kHelp);
  return kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv, argv + argc);
  const std::string command = words.size() > 1 ? words[1] : "";
  try {
    tutti::launch::open_standard_descriptors();
    return run_command(command, {words.begin() + (argc > 2 ? 2 : argc), words.end()});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "tutti %s: %s\n", command.c_str(), error.what());
    return kUsage;
  }
}
