// Answers for a machine.
#include "launch/machines/answer.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "launch/machines/machine.hpp"
#include "launch/machines/mpiexec.hpp"
#include "launch/process/lists.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

constexpr std::string_view kMark = "tutti-answer ";
// An answer is passed on in one piece, which a pipe and mpiexec do with up to 4 KiB.
constexpr int kMostPorts = 400;

/** `wanted` is how many ranks there are, and which ports they listen on. */
Facts look_around(const std::vector<int>& wanted, const std::vector<std::string>& files) {
  std::error_code ignored;
  const std::string processes = std::filesystem::read_symlink("/proc/self/ns/pid", ignored);
  Facts facts{{"version", TUTTI_VERSION},
              {"name", host_name()},
              {"kernel", boot_id() + processes},
              {"mpi", mpi_version()},
              {"processors", std::to_string(this_machine().processors.size())}};
  try {
    check_files(files);
    check_shared_memory(wanted.front());
    ReservedPorts free;
    for (std::size_t i = 1; i < wanted.size(); ++i) free.take(wanted[i], "one of the endpoints");
    std::vector<std::string> ports;
    for (int port = 0; port < std::min(wanted.front() + 2, kMostPorts); ++port) {
      ports.push_back(std::to_string(free.take()));
    }
    facts["ports"] = join_list(ports);
  } catch (const Error& error) {
    facts["fault"] = error.what();
  }
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  facts["clock"] = std::to_string(std::chrono::duration<double>(now).count());
  return facts;
}

}  // namespace

int run_check(const std::vector<std::string>& arguments) {
  const auto number = parse_number<std::size_t>(environment("OMPI_COMM_WORLD_RANK").value_or("0"));
  std::vector<std::string> ranks;
  if (arguments.size() >= 4 && arguments[0] == "--ranks" && arguments[2] == "--") {
    ranks = split_list(arguments[1]);
  }
  std::vector<int> wanted;
  if (number && *number < ranks.size()) {
    for (const std::string& item : split_list(ranks[*number], ':')) {
      wanted.push_back(parse_number<int>(item).value_or(0));
    }
  }
  if (wanted.empty()) refuse("tutti check is for tutti run, which asks machines by it");
  std::string text;
  for (const auto& [name, value] : look_around(wanted, {arguments.begin() + 3, arguments.end()})) {
    text.append(kMark).append(std::to_string(*number));
    text.append(" ").append(name).append(" ").append(value).append("\n");
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}

std::map<std::size_t, Facts> find_answers(const std::string& printed) {
  std::map<std::size_t, Facts> answers;
  for (std::string line : split_list(printed, '\n')) {
    if (!line.starts_with(kMark)) continue;
    line.erase(0, kMark.size());
    const auto number_end = line.find(' ');
    const auto name_end = line.find(' ', number_end + 1);
    const auto number = parse_number<std::size_t>(line.substr(0, number_end));
    if (!number || number_end == std::string::npos || name_end == std::string::npos) continue;
    answers[*number][line.substr(number_end + 1, name_end - number_end - 1)] =
        line.substr(name_end + 1);
  }
  return answers;
}

}  // namespace tutti::launch
