// The processes of this host that mpiexec started along with this one.
#include "comm/mpi/job.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "base/environment.hpp"
#include "base/text.hpp"

namespace tutti::mpi {
namespace {

namespace fs = std::filesystem;

/** What is in a file of /proc; nothing if the process is another user's, or gone. */
std::string contents(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/** The value of `name` in a block of NAME=VALUE, each ended by a zero. */
std::optional<std::string> value_of(std::string_view block, std::string_view name) {
  while (!block.empty()) {
    const std::string_view entry = block.substr(0, block.find('\0'));
    if (entry.starts_with(name) && entry.substr(name.size()).starts_with('=')) {
      return std::string(entry.substr(name.size() + 1));
    }
    block.remove_prefix(std::min(block.size(), entry.size() + 1));
  }
  return std::nullopt;
}

/** Whether the process initialises MPI, and is not stopped. */
bool initialises(const fs::path& of_process) {
  std::error_code error;
  for (fs::directory_iterator task(of_process / "task", error), end; !error && task != end;
       task.increment(error)) {
    if (contents(task->path() / "comm") != std::string(kInitialisingThread) + "\n") continue;
    const std::string stat = contents(task->path() / "stat");
    const std::size_t state = stat.rfind(')') + 2;  // the name before it may hold anything
    return state < stat.size() && stat[state] != 'T' && stat[state] != 't';
  }
  return false;
}

}  // namespace

LocalRanks local_ranks() {
  LocalRanks found;
  const auto job = environment("PMIX_NAMESPACE");
  if (!job) return found;
  std::map<int, bool> has_come;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    if (!parse_number<int>(entry->path().filename().string())) continue;
    const std::string block = contents(entry->path() / "environ");
    if (value_of(block, "PMIX_NAMESPACE") != job) continue;
    const auto rank = parse_number<int>(value_of(block, "PMIX_RANK").value_or(""));
    // Programs that start the rank, or that it starts, have its environment as well.
    if (rank) has_come[*rank] = has_come[*rank] || initialises(entry->path());
  }
  for (const auto& [rank, come] : has_come) {
    if (come) {
      ++found.come;
    } else {
      found.missing.push_back(rank);
    }
  }
  if (found.come == 0) return {};  // not even this process is seen: /proc tells nothing
  return found;
}

}  // namespace tutti::mpi
