// Tables and dense parameters of a parameter server, one worker and one server, beside other ways
// to have them on one host and beside what memory allows.
//
//   ps_bench [--rows 8M] [--dim 16] [--batch 8192] [--rounds 5] [--seconds 0.5] [--tasks T,...]
//            [--peers own,ps-lite,mpi] [--json FILE]
//
// Every side runs in processes of its own, which take turns: round after round each does each task
// for so many seconds. Prints a table of medians and, with --json, a JSON line for each task and
// side: `us` a call, `rows_per_s`, and `limit_rows_per_s`: what one thread does that touches the
// same cache lines at known places (of push_ack: a cache line to another core and back; of
// push_ack_asleep a bare futex to a process that sleeps, and one back). A batch of
// lookup and push_* has distinct ids at random among all rows. `checked`: the values were right
// after each turn. "ps-lite" adds in push_sgd; "mpi" is one-sided communication on a window, with
// numbers of rows instead of ids. push_ack is one row, until it has been applied;
// push_ack_asleep the same after 5 ms of silence.
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <map>
#include <sstream>

#include "ps/side.hpp"
#include "support/numbers.hpp"
#include "tutti/error.hpp"
#include "tutti/output_file.hpp"

namespace {

using tutti::InvalidArgument;
using tutti::bench::PsLoad;
using tutti::bench::PsSide;
using tutti::bench::PsTurn;

struct PsBenchOptions {
  PsLoad load;
  int rounds = 5;
  std::vector<std::string> tasks;
  std::vector<std::string> peers{"own", "ps-lite", "mpi"};
  std::string json;
  std::string side;  ///< this process is one, and takes its tasks from stdin
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> items;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) items.push_back(item);
  return items;
}

PsBenchOptions parse(int argc, char** argv) {
  PsBenchOptions options;
  for (const std::string_view task : tutti::bench::ps_tasks()) options.tasks.emplace_back(task);
  for (int i = 1; i < argc; i += 2) {
    const std::string option = argv[i];
    if (i + 1 == argc) throw InvalidArgument(option + " needs a value");
    const std::string value = argv[i + 1];
    const auto count = [&] { return tutti::bench::count_of(option, value); };
    if (option == "--rows") {
      options.load.rows = count();
    } else if (option == "--dim") {
      options.load.dim = count();
    } else if (option == "--batch") {
      options.load.batch = count();
    } else if (option == "--rounds") {
      options.rounds = tutti::bench::number_of(option, value, 1);
    } else if (option == "--seconds") {
      options.load.seconds = tutti::bench::positive_of(option, value);
    } else if (option == "--tasks") {
      options.tasks = split(value);
    } else if (option == "--peers") {
      options.peers = split(value);
    } else if (option == "--json") {
      options.json = value;
    } else if (option == "--side") {
      options.side = value;
    } else {
      throw InvalidArgument("unknown option " + option +
                            " (--rows, --dim, --batch, --rounds, --seconds, --tasks, --peers, "
                            "--json)");
    }
  }
  if (options.load.batch > options.load.rows) {
    throw InvalidArgument("--batch is more than --rows");
  }
  for (const std::string& task : options.tasks) {
    const auto all = tutti::bench::ps_tasks();
    if (std::find(all.begin(), all.end(), task) == all.end()) {
      throw InvalidArgument("--tasks has '" + task + "', which is none");
    }
  }
  for (const std::string& peer : options.peers) {
    if (peer != "own" && peer != "ps-lite" && peer != "mpi") {
      throw InvalidArgument("--peers has '" + peer + "', but takes own, ps-lite, mpi");
    }
  }
  return options;
}

std::unique_ptr<PsSide> make_side(const std::string& name, const PsLoad& load) {
  if (name == "own") return tutti::bench::make_own_side(load);
  if (name == "limit") return tutti::bench::make_limit_side(load);
  if (name == "mpi") return tutti::bench::make_mpi_side(load);
  if (name == "ps-lite") return tutti::bench::make_pslite_side(load);
  throw InvalidArgument("--side is '" + name + "', which is none");
}

/** Does what lines on stdin ask for; says "us checked" to each on stdout, or "none". */
int be_side(const PsBenchOptions& options) {
  const std::unique_ptr<PsSide> side = make_side(options.side, options.load);
  std::printf("ready\n");
  std::fflush(stdout);
  char line[64];
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    std::string task = line;
    task.pop_back();
    const std::optional<PsTurn> turn = side->measure(task);
    if (turn) {
      std::printf("%.6f %d\n", turn->us, turn->checked ? 1 : 0);
    } else {
      std::printf("none\n");
    }
    std::fflush(stdout);
  }
  return 0;
}

/** A process that is a side. */
class SideProcess {
 public:
  SideProcess(std::string name, const std::vector<std::string>& command) : name_(std::move(name)) {
    int ends[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw tutti::SystemError("socketpair", errno);
    }
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGTERM);
      ::dup2(ends[1], STDIN_FILENO);
      ::dup2(ends[1], STDOUT_FILENO);
      std::vector<char*> words;
      for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
      words.push_back(nullptr);
      ::execvp(words[0], words.data());
      std::perror(words[0]);
      ::_exit(127);
    }
    ::close(ends[1]);
    end_ = ::fdopen(ends[0], "r+");
    std::string line = answer();
    while (!line.empty() && line != "ready") line = answer();  // libraries may chat
    if (line.empty()) throw tutti::BackendUnavailable(name_ + " did not start");
  }
  SideProcess(const SideProcess&) = delete;
  SideProcess& operator=(const SideProcess&) = delete;
  ~SideProcess() {
    std::fclose(end_);
    ::waitpid(pid_, nullptr, 0);
  }

  const std::string& name() const { return name_; }

  /** Throws BackendUnavailable if it has ended. */
  std::optional<PsTurn> measure(const std::string& task) {
    std::fprintf(end_, "%s\n", task.c_str());
    std::fflush(end_);
    const std::string line = answer();
    if (line.empty()) throw tutti::BackendUnavailable(name_ + " ended in " + task);
    PsTurn turn;
    int checked = 0;
    if (std::sscanf(line.c_str(), "%lf %d", &turn.us, &checked) != 2) return std::nullopt;
    turn.checked = checked == 1;
    return turn;
  }

 private:
  std::string answer() {
    char line[256];
    if (std::fgets(line, sizeof(line), end_) == nullptr) return {};
    std::string text = line;
    text.pop_back();
    return text;
  }

  std::string name_;
  pid_t pid_ = 0;
  std::FILE* end_ = nullptr;
};

std::unique_ptr<SideProcess> start_side(const std::string& name, int argc, char** argv) {
  std::vector<std::string> command;
  if (name == "mpi") command = {"mpiexec", "-n", "2", "--oversubscribe", "--bind-to", "none"};
  command.insert(command.end(), {"/proc/self/exe", "--side", name});
  if (name == "mpi") command[6] = argv[0];
  command.insert(command.end(), argv + 1, argv + argc);
  return std::make_unique<SideProcess>(name, command);
}

struct Measured {
  std::vector<double> us;
  bool checked = true;
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

using Results = std::map<std::string, std::map<std::string, Measured>>;  // by task, by side

Results take_turns(const PsBenchOptions& options,
                   const std::vector<std::unique_ptr<SideProcess>>& sides) {
  Results results;
  for (int round = 0; round < options.rounds; ++round) {
    for (const std::string& task : options.tasks) {
      for (const auto& side : sides) {
        const std::optional<PsTurn> turn = side->measure(task);
        if (!turn) continue;
        Measured& measured = results[task][side->name()];
        measured.us.push_back(turn->us);
        measured.checked = measured.checked && turn->checked;
      }
    }
  }
  return results;
}

/** Whether all values were right. */
bool report(const PsBenchOptions& options, Results& results, tutti::OutputFile* json) {
  bool good = true;
  std::printf("%-16s %-8s %12s %12s %12s %12s  of limit\n", "task", "side", "us", "limit us",
              "M rows/s", "limit");
  for (const std::string& task : options.tasks) {
    const auto rows = static_cast<double>(tutti::bench::rows_of(task, options.load));
    const Measured& limit = results[task]["limit"];
    const double most = limit.us.empty() ? 0 : rows / median(limit.us);
    for (const auto& [side, measured] : results[task]) {
      if (side == "limit" || measured.us.empty()) continue;
      const double us = median(measured.us);
      good = good && measured.checked;
      std::printf("%-16s %-8s %12.2f %12.2f %12.3f %12.3f  %.3f%s\n", task.c_str(), side.c_str(),
                  us, most > 0 ? rows / most : 0, rows / us, most, most > 0 ? rows / us / most : 0,
                  measured.checked ? "" : "  WRONG");
      if (json == nullptr) continue;
      std::ostringstream line;
      line << R"({"what": ")" << task << R"(", "peer": ")" << side << R"(", "rows": )"
           << options.load.rows << R"(, "dim": )" << options.load.dim << R"(, "batch": )"
           << tutti::number_text(rows) << R"(, "us": )" << tutti::number_text(us)
           << R"(, "rows_per_s": )" << tutti::number_text(rows / us * 1e6)
           << R"(, "limit_rows_per_s": )" << tutti::number_text(most * 1e6) << R"(, "checked": )"
           << (measured.checked ? "true" : "false") << "}\n";
      json->write(line.str());
    }
  }
  return good;
}

int run(int argc, char** argv) {
  const PsBenchOptions options = parse(argc, argv);
  if (!options.side.empty()) return be_side(options);
  std::optional<tutti::OutputFile> json;  // made first, or all would be measured for nothing
  if (!options.json.empty()) json.emplace(options.json);
  std::vector<std::unique_ptr<SideProcess>> sides;
  sides.push_back(start_side("limit", argc, argv));
  for (const std::string& peer : options.peers) {
    try {
      sides.push_back(start_side(peer, argc, argv));
    } catch (const tutti::BackendUnavailable& error) {
      if (peer == "own") throw;
      std::printf("WITHOUT %s: %s\n", peer.c_str(), error.what());
    }
  }
  if (sides.size() == 1) throw InvalidArgument("--peers names nobody who has started");
  Results results = take_turns(options, sides);
  const bool good = report(options, results, json ? &*json : nullptr);
  if (json) json->commit();
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const tutti::Error& error) {
    std::fprintf(stderr, "ps_bench: %s\n", error.what());
    return 2;
  }
}
