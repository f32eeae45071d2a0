// Reads lists of machines.
#include "launch/machines/hosts.hpp"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <sstream>

#include "base/environment.hpp"
#include "base/refuse.hpp"
#include "base/text.hpp"
#include "launch/process/lists.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

constexpr int kMostSlots = 4096;
constexpr std::size_t kMostNodes = 100'000;

/** A number of ranks; nothing if the text is none. */
std::optional<int> slots_of(std::string_view text) {
  const auto number = parse_number<int>(text);
  return number && *number >= 1 && *number <= kMostSlots ? number : std::nullopt;
}

/** "name" or "name:2". */
std::optional<Host> host_of(std::string_view text) {
  const std::size_t colon = text.find(':');
  Host host{.name = std::string(text.substr(0, colon))};
  if (host.name.empty()) return std::nullopt;
  if (colon == std::string_view::npos) return host;
  const auto slots = slots_of(text.substr(colon + 1));
  if (!slots) return std::nullopt;
  host.slots = *slots;
  return host;
}

void add(std::vector<Host>& hosts, const Host& host) {
  const auto same = [&](const Host& other) { return other.name == host.name; };
  const auto known = std::find_if(hosts.begin(), hosts.end(), same);
  if (known == hosts.end()) {
    hosts.push_back(host);
  } else {
    known->slots = std::max(known->slots, 1) + std::max(host.slots, 1);
  }
}

/** One line of a hostfile without its comment; nothing if it is wrong. */
std::optional<Host> host_of_line(const std::string& line) {
  std::istringstream words(line);
  std::string word;
  words >> word;
  auto host = host_of(word);
  while (host && words >> word) {
    const auto equals = word.find('=');
    const std::string name = word.substr(0, equals);
    const auto number =
        equals == std::string::npos ? std::nullopt : slots_of(word.substr(equals + 1));
    if (!number) return std::nullopt;
    if (name == "slots") {
      host->slots = *number;
    } else if (name != "max_slots" && name != "max-slots") {
      return std::nullopt;
    }
  }
  return host;
}

/** "2(x3),1": how many tasks each node has. */
std::vector<int> expand_tasks(const std::string& text) {
  std::vector<int> tasks;
  for (const std::string& item : split_list(text)) {
    const auto bracket = item.find("(x");
    const auto number = slots_of(item.substr(0, bracket));
    const auto times = bracket == std::string::npos
                           ? std::optional(1)
                           : slots_of(item.substr(bracket + 2, item.size() - bracket - 3));
    if (!number || !times)
      refuse("SLURM_TASKS_PER_NODE is '", text, "', which is not like 2(x3),1");
    tasks.insert(tasks.end(), static_cast<std::size_t>(*times), *number);
  }
  return tasks;
}

std::vector<Host> slurm_hosts(const std::string& list) {
  std::vector<Host> hosts;
  for (const std::string& name : expand_nodes(list)) hosts.push_back({.name = name});
  // Without --ntasks Slurm says one a node, which nobody has asked for.
  const bool asked = environment("SLURM_NTASKS") || environment("SLURM_NTASKS_PER_NODE");
  if (const auto tasks = environment("SLURM_TASKS_PER_NODE"); tasks && asked) {
    const std::vector<int> slots = expand_tasks(*tasks);
    for (std::size_t i = 0; i < hosts.size() && i < slots.size(); ++i) hosts[i].slots = slots[i];
  }
  return hosts;
}

/** What brackets hold: "1-3,07" gives 1, 2, 3, 07, each behind `prefix`. */
void expand_range(std::string_view prefix, std::string_view range,
                  std::vector<std::string>& names) {
  for (const std::string& item : split_list(range)) {
    const auto dash = item.find('-');
    const std::string low = item.substr(0, dash);
    const auto first = parse_number<long>(low);
    const auto last = dash == std::string::npos ? first : parse_number<long>(item.substr(dash + 1));
    if (!first || !last || *first < 0 || *last < *first ||
        static_cast<std::size_t>(*last - *first) > kMostNodes) {
      refuse("a list of nodes has '", range, "' in brackets, which is not like 1-3,07");
    }
    for (long number = *first; number <= *last; ++number) {
      std::string digits = std::to_string(number);
      if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
      names.push_back(std::string(prefix) + digits);
    }
  }
}

}  // namespace

std::vector<Host> parse_hosts(const std::string& option, std::string_view text) {
  std::vector<Host> hosts;
  for (const std::string& item : split_list(text)) {
    const auto host = host_of(item);
    if (!host) refuse(option, " has '", item, "', but must be a list such as a:2,b:2, or of names");
    add(hosts, *host);
  }
  if (hosts.empty()) refuse(option, " names no machine");
  return hosts;
}

std::vector<Host> read_hostfile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw SystemError("--hostfile " + path, errno);
  std::vector<Host> hosts;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    line.erase(std::min(line.find('#'), line.size()));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const auto host = host_of_line(line);
    if (!host) {
      refuse("--hostfile ", path, ", line ", number, ": '", line,
             "', but must be like `name slots=2`");
    }
    add(hosts, *host);
  }
  if (file.bad()) throw SystemError("--hostfile " + path, errno);  // a folder, for one
  if (hosts.empty()) refuse("--hostfile ", path, " names no machine");
  return hosts;
}

void check_alone_in_step() {
  const auto tasks = environment("SLURM_STEP_NUM_TASKS");
  if (!environment("SLURM_JOB_NODELIST") || tasks.value_or("1") == "1") return;
  if (environment("SLURM_PTY_PORT")) return;  // a shell, of the first task
  refuse("srun has started ", *tasks,
         " processes of tutti run (SLURM_STEP_NUM_TASKS), which starts the ranks itself: start it "
         "once, in the batch script or with srun --ntasks=1");
}

bool has_resource_manager() {
  return environment("SLURM_JOB_NODELIST") || environment("PBS_NODEFILE");
}

std::vector<Host> allocated_hosts() {
  if (const auto list = environment("SLURM_JOB_NODELIST")) return slurm_hosts(*list);
  const auto path = environment("PBS_NODEFILE");
  if (!path) return {};
  std::ifstream file(*path);
  if (!file) throw SystemError("PBS_NODEFILE " + *path, errno);
  std::vector<Host> hosts;
  for (std::string line; std::getline(file, line);) {
    if (!line.empty()) add(hosts, {.name = line, .slots = 1});
  }
  return hosts;
}

void check_names(const std::vector<Host>& hosts) {
  constexpr std::string_view kForbidden = " \t\r\n#";  // in a hostfile
  for (const Host& host : hosts) {
    if (host.name.empty() || host.name.front() == '-' ||
        host.name.find_first_of(kForbidden) != std::string::npos) {
      refuse("'", host.name, "' cannot be the name of a machine");
    }
  }
}

std::vector<std::string> expand_nodes(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::size_t end = text.find_first_of(",[");
    const std::string_view prefix = text.substr(0, end);
    if (end == std::string_view::npos || text[end] == ',') {
      if (!prefix.empty()) names.emplace_back(prefix);
      text.remove_prefix(std::min(prefix.size() + 1, text.size()));
      continue;
    }
    const std::size_t close = text.find(']', end);
    if (close == std::string_view::npos)
      refuse("a list of nodes has '[' without ']': '", text, "'");
    expand_range(prefix, text.substr(end + 1, close - end - 1), names);
    text.remove_prefix(close + 1);
    if (!text.empty() && text.front() != ',') {
      refuse("a list of nodes has '", text, "' behind its brackets, which is not understood");
    }
    if (!text.empty()) text.remove_prefix(1);
  }
  return names;
}

}  // namespace tutti::launch
