// The command line of `tutti run`: one table of options.
#include "launch/options.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

#include "base/refuse.hpp"
#include "base/text.hpp"
#include "launch/process/lists.hpp"

namespace tutti::launch {
namespace {

constexpr int kMostRanks = 4096;
constexpr std::string_view kPrefixHelp =
    "what precedes each line that is shown, with {rank}, {local_rank}, {role}, {index}, {host}, "
    "{time}";
constexpr std::string_view kPrefixWords = kPrefixHelp.substr(kPrefixHelp.find('{'));

/** An option as it was given: what errors name. */
struct Given {
  std::string name;
  std::string value;

  [[noreturn]] void refuse(const std::string& expected) const {
    tutti::refuse(name, " is '", value, "', but must be ", expected);
  }
  int number(int low, int high) const {
    const auto found = parse_number<int>(value);
    if (!found || *found < low || *found > high) {
      refuse("a number from " + std::to_string(low) + " to " + std::to_string(high));
    }
    return *found;
  }
  std::chrono::milliseconds seconds() const {
    const auto found = parse_number<double>(value);
    if (!found || !(*found > 0) || *found > 1e9) refuse("a number of seconds above 0");
    return std::chrono::milliseconds(std::llround(std::ceil(*found * 1000)));
  }
  std::vector<std::string> items() const {
    std::vector<std::string> list = split_list(value);
    if (list.empty() || std::find(list.begin(), list.end(), "") != list.end()) {
      refuse("a list such as a,b with nothing empty in it");
    }
    return list;
  }
};

RankCount rank_count(const Given& given) {
  if (given.value == "auto") return {.of = RankCount::Of::automatic};
  if (given.value == "gpu") return {.of = RankCount::Of::gpus};
  const auto number = parse_number<int>(given.value);
  if (!number || *number < 1 || *number > kMostRanks) {
    given.refuse("a number from 1 to " + std::to_string(kMostRanks) + ", auto or gpu");
  }
  return {.number = *number};
}

std::vector<std::string> gpus(const Given& given) {
  std::vector<std::string> list = given.items();
  for (auto gpu = list.begin(); gpu != list.end(); ++gpu) {
    if (std::find(list.begin(), gpu, *gpu) != gpu) given.refuse("a list that names no GPU twice");
    // As CUDA_VISIBLE_DEVICES names them: by number, or as `nvidia-smi -L` shows them.
    const bool named = gpu->starts_with("GPU-") || gpu->starts_with("MIG-");
    if (!named && parse_number<int>(*gpu).value_or(-1) < 0) {
      given.refuse("a list of numbers of GPUs, or of names that begin with GPU- or MIG-");
    }
  }
  return list;
}

std::vector<Endpoint> endpoints(const Given& given, bool port_needed) {
  std::vector<Endpoint> list;
  for (const std::string& item : given.items()) {
    // Of an address with several colons only what stands behind brackets is a port.
    const auto bracket = item.starts_with('[') ? item.find(']') : std::string::npos;
    const bool bare = bracket == std::string::npos && item.find(':') != item.rfind(':');
    const auto colon = bare ? std::string::npos : item.find(':', bracket + 1);
    Endpoint endpoint{.host = item.substr(0, colon)};
    if (bracket != std::string::npos) endpoint.host = item.substr(1, bracket - 1);
    if (colon != std::string::npos) {
      const auto port = parse_number<int>(item.substr(colon + 1));
      if (!port || *port < 1 || *port > 65535) given.refuse("a list of HOST:PORT, ports to 65535");
      endpoint.port = *port;
    } else if (port_needed) {
      given.refuse("a list of HOST:PORT: '" + item + "' has no port");
    }
    if (endpoint.host.empty()) given.refuse("a list of HOST:PORT: '" + item + "' has no host");
    list.push_back(endpoint);
  }
  return list;
}

std::string prefix(const Given& given) {
  const std::string& text = given.value;
  for (auto open = text.find('{'); open != std::string::npos; open = text.find('{', open + 1)) {
    const auto close = text.find_first_of("{}", open + 1);
    if (close == std::string::npos || text[close] == '{') continue;
    const std::string word = text.substr(open, close - open + 1);
    if (kPrefixWords.find(word) == std::string::npos) {
      tutti::refuse(given.name, " has ", word, ", but only these are known: ", kPrefixWords);
    }
  }
  return text;
}

Binding binding(const Given& given) {
  if (given.value == "none") return Binding::none;
  if (given.value == "core") return Binding::core;
  if (given.value == "socket") return Binding::socket;
  if (given.value == "auto") return Binding::automatic;
  given.refuse("none, core, socket or auto");
}

Variable variable(const Given& given) {
  const auto equals = given.value.find('=');
  const std::string name = given.value.substr(0, equals);
  if (name.empty()) tutti::refuse(given.name, " needs the name of a variable");
  if (equals != std::string::npos) return {name, given.value.substr(equals + 1), true};
  const char* const value = std::getenv(name.c_str());
  if (value == nullptr) tutti::refuse(given.name, " ", name, ": there is no such variable here");
  return {name, value, true};
}

Tee tee(const Given& given) {
  if (given.value == "all") return {.all = true, .ranks = {}};
  Tee tee{.ranks = {}};
  if (given.value == "none") return tee;
  for (const std::string& item : given.items()) {
    const auto rank = parse_number<int>(item);
    if (!rank || *rank < 0) given.refuse("all, none or a list of ranks such as 0,3");
    tee.ranks.insert(*rank);
  }
  return tee;
}

using Store = void (*)(RunOptions&, const Given&);

struct Option {
  std::string_view names;  ///< separated by blanks, the one for help first
  std::string_view value;  ///< what stands for it in the help; empty: it takes none
  std::string_view help;
  Store store;
};

// NOLINTBEGIN(readability-identifier-naming): no names, parameters
const std::array kOptions{
    Option{"--nproc_per_node -n -np", "N|auto|gpu",
           "ranks on each machine; auto: one for each GPU, or else each core; gpu: one for each "
           "GPU. Without this and the next options: one for each GPU, or else one",
           [](RunOptions& o, const Given& g) { o.ranks = rank_count(g); }},
    Option{"--hosts -H", "a:2,b:2",
           "ranks on several machines, and how many on each; they are started by mpiexec",
           [](RunOptions& o, const Given& g) { o.hosts = parse_hosts(g.name, g.value); }},
    Option{"--hostfile", "FILE", "the same from a file with a line a machine: name slots=2",
           [](RunOptions& o, const Given& g) { o.hosts = read_hostfile(g.value); }},
    Option{"--ips", "a,b",
           "machines that are all given this command: the first of them starts the ranks of all",
           [](RunOptions& o, const Given& g) { o.ips = g.items(); }},
    Option{"--gpus", "0,1",
           "which GPUs the workers use, of those in CUDA_VISIBLE_DEVICES if that is set",
           [](RunOptions& o, const Given& g) { o.gpus = gpus(g); }},
    Option{"--server_num", "N", "ranks with the role of a server, on this machine",
           [](RunOptions& o, const Given& g) { o.server_num = g.number(1, kMostRanks); }},
    Option{"--worker_num", "N", "ranks with the role of a worker, on this machine",
           [](RunOptions& o, const Given& g) { o.worker_num = g.number(1, kMostRanks); }},
    Option{"--heter_worker_num", "N", "ranks that work on other devices than the workers",
           [](RunOptions& o, const Given& g) { o.heter_worker_num = g.number(1, kMostRanks); }},
    Option{"--servers", "HOST:PORT,...",
           "servers, each with its machine and the port that it listens on",
           [](RunOptions& o, const Given& g) { o.servers = endpoints(g, true); }},
    Option{"--workers", "HOST[:PORT],...", "workers, each with its machine",
           [](RunOptions& o, const Given& g) { o.workers = endpoints(g, false); }},
    Option{"--heter_workers", "HOST[:PORT],...", "workers on other devices, each with its machine",
           [](RunOptions& o, const Given& g) { o.heter_workers = endpoints(g, false); }},
    Option{"--http_port", "PORT",
           "where the first server's machine answers Gloo (PADDLE_GLOO_HTTP_ENDPOINT)",
           [](RunOptions& o, const Given& g) { o.http_port = g.number(1, 65535); }},
    Option{"--bind", "none|core|socket|auto", "where a rank may run (none)",
           [](RunOptions& o, const Given& g) { o.binding = binding(g); }},
    Option{"--env", "NAME[=VALUE]", "a variable for the ranks; may be repeated",
           [](RunOptions& o, const Given& g) { o.environment.push_back(variable(g)); }},
    Option{"--log_dir", "DIR",
           "the folder of the logs; each run has its own in it, and last is a link (log)",
           [](RunOptions& o, const Given& g) { o.log_dir = g.value; }},
    Option{"--tee", "RANKS",
           "of which ranks all output is shown: all, none or 0,3 (0); of the others stderr",
           [](RunOptions& o, const Given& g) { o.tee = tee(g); }},
    Option{"--prefix", "TEXT", kPrefixHelp,
           [](RunOptions& o, const Given& g) { o.prefix = prefix(g); }},
    Option{"--timeout", "SECONDS", "end the job after that time, with exit code 124",
           [](RunOptions& o, const Given& g) { o.timeout = g.seconds(); }},
    Option{"--grace", "SECONDS", "between SIGTERM and SIGKILL when ranks are ended (5)",
           [](RunOptions& o, const Given& g) { o.grace = g.seconds(); }},
    Option{"--keep_going", "",
           "a worker that fails is named, and the others go on; the exit code is its",
           [](RunOptions& o, const Given&) { o.keep_going = true; }},
    Option{"--restart", "N",
           "start all ranks again, up to N times, when one has failed (TUTTI_ATTEMPT counts)",
           [](RunOptions& o, const Given& g) { o.restarts = g.number(0, 1'000'000); }},
    Option{"--dry-run", "", "print what would be started, and end",
           [](RunOptions& o, const Given&) { o.dry_run = true; }},
    Option{"--module -m", "", "PROGRAM is a module of Python's",
           [](RunOptions& o, const Given&) { o.module = true; }},
    Option{"--help -h", "", "this text", [](RunOptions& o, const Given&) { o.help = true; }},
};
// NOLINTEND(readability-identifier-naming)

/** The name as it is in the table: `-` and `_` within it are one. */
std::string table_name(std::string name) {
  for (std::size_t i = 2; i < name.size(); ++i) {
    if (name[i] == '-' && name != "--dry-run") name[i] = '_';
  }
  return name == "--dry_run" ? "--dry-run" : name;
}

const Option& find_option(const std::string& given) {
  const std::string name = table_name(given);
  for (const Option& option : kOptions) {
    for (const std::string& known : split_list(option.names, ' ')) {
      if (known == name) return option;
    }
  }
  refuse("tutti run has no option ", given, " (tutti run --help lists them)");
}

/** What cannot be said of one option alone. */
void check_together(const RunOptions& options) {
  struct Role {
    const char* number_name;
    const std::optional<int>& number;
    const char* list_name;
    const std::vector<Endpoint>& list;
  };
  const std::array roles{Role{"--server_num", options.server_num, "--servers", options.servers},
                         Role{"--worker_num", options.worker_num, "--workers", options.workers},
                         Role{"--heter_worker_num", options.heter_worker_num, "--heter_workers",
                              options.heter_workers}};
  for (const Role& role : roles) {
    if (role.number && !role.list.empty() &&
        static_cast<std::size_t>(*role.number) != role.list.size()) {
      refuse(role.number_name, " is ", *role.number, ", but ", role.list_name, " names ",
             role.list.size());
    }
  }
  if (!options.hosts.empty() && !options.ips.empty()) {
    refuse("--ips and --hosts both say where ranks run: give one of them");
  }
  for (const Host& host : options.hosts) {
    if (options.ranks && host.slots != 0) {
      refuse("--nproc_per_node and ", host.name, ":", host.slots,
             " both say how many ranks there are on ", host.name);
    }
  }
  if (!options.has_roles()) {
    if (options.http_port) {
      refuse("--http_port ", *options.http_port,
             " is for jobs with servers: --server_num or --servers");
    }
    return;
  }
  if (options.ranks) {
    refuse(
        "--nproc_per_node is for ranks without roles; with servers, --worker_num or --workers "
        "say how many workers there are");
  }
  if (!options.hosts.empty() || !options.ips.empty()) {
    refuse(
        "with --hosts or --ips all ranks are alike; servers and workers on several machines are "
        "named by --servers and --workers");
  }
  if (!options.server_num && options.servers.empty()) {
    refuse(
        "workers without a server: --server_num or --servers is missing (ranks without roles: "
        "--nproc_per_node N)");
  }
  if (!options.worker_num && options.workers.empty()) {
    refuse("servers without a worker: --worker_num or --workers is missing");
  }
}

}  // namespace

RunOptions parse_run(const std::vector<std::string>& arguments) {
  RunOptions options;
  std::size_t i = 0;
  for (; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "--") {
      ++i;
      break;
    }
    if (!word.starts_with('-') || word == "-") break;
    const auto equals = word.starts_with("--") ? word.find('=') : std::string::npos;
    Given given{.name = word.substr(0, equals), .value = {}};
    const Option& option = find_option(given.name);
    if (option.value.empty()) {
      if (equals != std::string::npos) refuse(given.name, " takes no value");
    } else if (equals != std::string::npos) {
      given.value = word.substr(equals + 1);
    } else if (++i < arguments.size()) {
      given.value = arguments[i];
    }
    if (!option.value.empty() && given.value.empty())
      refuse(given.name, " needs a value: ", option.value);
    option.store(options, given);
  }
  options.program.assign(
      arguments.begin() + static_cast<std::ptrdiff_t>(std::min(i, arguments.size())),
      arguments.end());
  if (options.help) return options;
  if (options.program.empty()) {
    refuse(options.module ? "-m needs the name of a module" : "tutti run needs a program to run",
           " (tutti run --help)");
  }
  check_together(options);
  return options;
}

std::string run_help() {
  std::string text =
      "tutti run [OPTIONS] PROGRAM [ARGUMENTS]: starts the ranks of a job\n\n"
      "PROGRAM is any program, or a script of Python's (NAME.py).\n\n";
  for (const Option& option : kOptions) {
    std::string names(option.names);
    for (std::size_t blank = 0; (blank = names.find(' ', blank)) != std::string::npos; blank += 2) {
      names.replace(blank, 1, ", ");
    }
    text += "  " + names;
    if (!option.value.empty()) text += " " + std::string(option.value);
    text += "\n      " + std::string(option.help) + "\n";
  }
  return text;
}

}  // namespace tutti::launch
