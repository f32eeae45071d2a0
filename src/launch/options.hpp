// What `tutti run` is told on its command line.
#pragma once

#include <chrono>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "launch/machines/hosts.hpp"
#include "launch/process/process.hpp"

namespace tutti::launch {

/** How many ranks a machine gets: a number, or what the machine has of something. */
struct RankCount {
  enum class Of { number, automatic, gpus };
  Of of = Of::number;
  int number = 1;  ///< if it is one
};

/** A host, and a port of it or 0. */
struct Endpoint {
  std::string host;
  int port = 0;

  /** "10.0.0.1:6170", "[fe80::1]:6170". */
  std::string text() const {
    const bool brackets = host.find(':') != std::string::npos;
    return (brackets ? "[" + host + "]" : host) + ":" + std::to_string(port);
  }
};

/** Where ranks may run: anywhere, on cores of their own, on a socket; `automatic` is on cores if
 * there are enough. */
enum class Binding { none, core, socket, automatic };

/** Of which ranks all output is shown. */
struct Tee {
  bool all = false;
  std::set<int> ranks{0};

  bool shows(int rank) const { return all || ranks.contains(rank); }
  bool nothing() const { return !all && ranks.empty(); }
};

struct RunOptions {
  std::optional<RankCount> ranks;  ///< of each machine
  std::vector<Host> hosts;         ///< of --hosts or --hostfile
  std::vector<std::string> ips;    ///< the machines that are given the same command
  std::optional<std::vector<std::string>> gpus;
  std::optional<int> server_num;
  std::optional<int> worker_num;
  std::optional<int> heter_worker_num;
  std::vector<Endpoint> servers;
  std::vector<Endpoint> workers;
  std::vector<Endpoint> heter_workers;
  std::optional<int> http_port;
  Binding binding = Binding::none;
  std::vector<Variable> environment;   ///< of --env
  std::optional<std::string> log_dir;  ///< "log" if it is not said
  Tee tee;
  std::optional<std::string> prefix;  ///< of each line that is shown
  std::optional<std::chrono::milliseconds> timeout;
  std::chrono::milliseconds grace{5000};  ///< between SIGTERM and SIGKILL
  int restarts = 0;
  bool keep_going = false;  ///< a worker that fails does not end the others
  bool dry_run = false;
  bool module = false;  ///< the program is a module of Python's
  bool help = false;
  std::vector<std::string> program;  ///< and its arguments

  /** Whether ranks have different roles. */
  bool has_roles() const {
    return server_num || worker_num || heter_worker_num || !servers.empty() || !workers.empty() ||
           !heter_workers.empty();
  }
};

/**
 * Reads what follows `tutti run`. Names may have `-` for `_`, and values follow after `=` or as the
 * next word; the first word that is no option is the program, and the rest is its own. Throws
 * InvalidArgument that names option and value.
 */
RunOptions parse_run(const std::vector<std::string>& arguments);

/** What `tutti run --help` prints. */
std::string run_help();

}  // namespace tutti::launch
