// Kills or stops a rank under mpiexec, on pretended hosts, and looks how the others take it.
//
// Each trial starts itself under mpiexec --enable-recovery, without which a death ends the job from
// outside. One rank sends itself SIGKILL or SIGSTOP, from a second thread at a random moment of a
// collective; each of the others must report PeerLost that names it, in time.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "base/file_descriptor.hpp"
#include "base/refuse.hpp"
#include "rig/processes.hpp"
#include "rig/work.hpp"
#include "support/options.hpp"
#include "support/world.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// For a second, ranks ask who is to blame. A death is noticed by itself, whatever the deadline is.
constexpr std::chrono::milliseconds kToBlame = 1s;
constexpr std::chrono::milliseconds kToNoticeADeath = 10s;
// To ask the ranks who is to blame, and for mpiexec to pass the answers on.
constexpr std::chrono::milliseconds kGrace = 5s;
constexpr std::chrono::milliseconds kStart = 60s;

/** What a rank of a trial is told, in this order on its command line. */
struct Order {
  int victim = 0;
  int signal = 0;
  int calls = 0;  ///< before the signal
  int spins = 0;  ///< after the last of them began
  std::string work;
  int timeout = 3;  ///< seconds

  /** How long the last call of a survivor may take. */
  std::chrono::milliseconds limit() const {
    const std::chrono::milliseconds blamed = std::chrono::seconds(timeout) + kToBlame;
    return signal == SIGKILL ? std::min(blamed, kToNoticeADeath) : blamed;
  }

  std::vector<std::string> arguments() const {
    return {std::to_string(victim),
            std::to_string(signal),
            std::to_string(calls),
            std::to_string(spins),
            work,
            std::to_string(timeout)};
  }
};

const Work& work_of(std::string_view name) {
  for (const Work& work : all_work()) {
    if (work.name == name) return work;
  }
  throw InvalidArgument("there is no work '" + std::string(name) + "'");
}

// --- A rank -------------------------------------------------------------------------------------

/** One write: the lines of the ranks do not mix. */
void say(const std::string& line) {
  const std::string text = line + "\n";
  if (::write(STDOUT_FILENO, text.data(), text.size()) < 0) std::perror("write");
}

int be_rank(int rank, int ranks, const Order& order) {
  const char* layout = std::getenv("TUTTI_TEST_HOSTS");
  const int host =
      parse_hosts(layout != nullptr ? layout : "", ranks)[static_cast<std::size_t>(rank)];
  ::setenv("TUTTI_HOST_ID", std::to_string(host).c_str(), 1);
  // MPI's own start may take longer than the deadline under test.
  { const Communicator start(short_timeout(kStart)); }
  std::optional<Communicator> communicator;
  std::jthread assassin;
  int calls = 0;
  auto begun = Clock::now();
  const auto strike = [&] {
    begun = Clock::now();
    if (++calls != order.calls) return;
    if (rank == order.victim) {
      say("victim " + std::to_string(::getpid()));
      assassin = std::jthread([&] {
        for (std::atomic<int> i = 0; i < order.spins; ++i) {
        }
        ::kill(::getpid(), order.signal);
      });
    }
  };
  std::string outcome;
  try {
    communicator.emplace(short_timeout(std::chrono::seconds(order.timeout)));
    outcome = work_until_lost(*communicator, work_of(order.work), strike);
  } catch (const PeerLost& error) {  // the victim was through first, and dies in its first call
    outcome = describe(error);
  }
  const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begun);
  say("rank " + std::to_string(rank) + " " +
      (took > order.limit() ? "took " + std::to_string(took.count()) + " ms, " : "") + outcome);
  return 0;
}

// --- The rig ------------------------------------------------------------------------------------

constexpr const char* kHelp =
    R"(mpi_rig [OPTIONS]: kills or stops a rank under mpiexec

  --mpiexec PATH     that one (mpiexec)
  --hosts LAYOUT     the hosts that ranks pretend to be on (2x2)
  --trials N         how many (0: one for each kind of work)
  --seed S           what is drawn (1)
  --work NAME        of that kind alone
  --signal NAME      kill or stop (either)
  --timeout SECONDS  of the ranks (3)
  --help             this text
)";

struct Options {
  bool help = false;
  std::string mpiexec = "mpiexec";
  std::string hosts = "2x2";
  int trials = 0;  ///< 0: one for each kind of work
  std::uint64_t seed = 1;
  std::string work;
  int signal = 0;   ///< 0: either
  int timeout = 3;  ///< seconds
};

/** A program whose output is read line by line. The destructor ends it. */
class Program {
 public:
  explicit Program(std::vector<std::string> command) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
    output_.reset(ends[0]);
    const FileDescriptor input(ends[1]);
    std::vector<char*> arguments;
    for (std::string& argument : command) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ < 0) throw SystemError("cannot fork", errno);
    if (pid_ == 0) {
      ::dup2(input.get(), STDOUT_FILENO);
      ::execvp(arguments[0], arguments.data());
      std::perror(arguments[0]);
      std::_Exit(127);
    }
    ::fcntl(output_.get(), F_SETFL, O_NONBLOCK);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    // mpiexec passes SIGTERM on to the ranks and cleans up.
    for (const int signal : {0, SIGTERM, SIGKILL}) {
      if (signal != 0) ::kill(pid_, signal);
      for (const auto deadline = Clock::now() + 10s; Clock::now() < deadline;) {
        if (::waitpid(pid_, nullptr, WNOHANG) == pid_) return;
        std::this_thread::sleep_for(5ms);
      }
    }
  }

  /** The next line, if one comes before `deadline`; nothing at the end of the output, too. */
  std::optional<std::string> line(Clock::time_point deadline) {
    for (;;) {
      if (const std::size_t end = text_.find('\n'); end != std::string::npos) {
        std::string first = text_.substr(0, end);
        text_.erase(0, end + 1);
        return first;
      }
      std::array<char, 4096> buffer;
      const ssize_t got = ::read(output_.get(), buffer.data(), buffer.size());
      if (got > 0) {
        text_.append(buffer.data(), static_cast<std::size_t>(got));
      } else if (got == 0 || Clock::now() > deadline) {
        return std::nullopt;
      } else {
        std::this_thread::sleep_for(2ms);
      }
    }
  }

 private:
  pid_t pid_ = -1;
  FileDescriptor output_;
  std::string text_;
};

/** A process that is stopped and must not outlive the trial; or that is killed, and another may
 * soon have its number. */
class Victim {
 public:
  explicit Victim(bool stops) : stops_(stops) {}
  Victim(const Victim&) = delete;
  Victim& operator=(const Victim&) = delete;
  ~Victim() {
    if (known() && stops_) ::kill(pid_, SIGKILL);
  }
  void set(pid_t pid) { pid_ = pid; }
  bool known() const { return pid_ > 0; }

 private:
  bool stops_;
  pid_t pid_ = 0;
};

/** Returns how long the last survivor took. */
std::chrono::milliseconds strike(const Options& options, int ranks, const Order& order,
                                 const std::string& self) {
  std::vector<std::string> command{options.mpiexec,
                                   "--oversubscribe",
                                   "--bind-to",
                                   "none",
                                   "--enable-recovery",
                                   "-n",
                                   std::to_string(ranks),
                                   "-x",
                                   "TUTTI_TEST_HOSTS=" + options.hosts,
                                   self};
  for (const std::string& argument : order.arguments()) command.push_back(argument);
  Program program(command);
  Victim victim(order.signal == SIGSTOP);
  std::map<int, std::string> outcomes;
  auto deadline = Clock::now() + kStart;
  auto struck = Clock::now();
  while (static_cast<int>(outcomes.size()) < ranks - 1) {
    const std::optional<std::string> line = program.line(deadline);
    if (!line) break;
    std::istringstream words(*line);
    std::string kind;
    int number = 0;
    if (!(words >> kind >> number)) continue;  // mpiexec has something to say, too
    if (kind == "victim") {
      victim.set(number);
      struck = Clock::now();
      deadline = struck + order.limit() + kGrace;
    } else if (kind == "rank") {
      std::getline(words >> std::ws, outcomes[number]);
    }
  }
  const auto took = Clock::now() - struck;
  if (!victim.known()) throw std::runtime_error("the ranks did not begin");
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank == order.victim) continue;
    const std::string& outcome = outcomes[rank];
    if (!outcome.starts_with("lost " + std::to_string(order.victim) + ":")) {
      throw std::runtime_error("rank " + std::to_string(rank) + " " +
                               (outcome.empty() ? "did not end in time" : outcome));
    }
  }
  return std::chrono::duration_cast<std::chrono::milliseconds>(took);
}

int run(const Options& options, const std::string& self) {
  std::mt19937_64 random(options.seed);
  const auto below = [&](int limit) {
    return static_cast<int>(random() % static_cast<std::uint64_t>(limit));
  };
  int ranks = 0;
  while (ranks < 64) {
    try {
      parse_hosts(options.hosts, ++ranks);
      break;
    } catch (const InvalidArgument&) {  // not the number of ranks of this layout
    }
  }
  const auto works = all_work();
  const int trials = options.trials > 0 ? options.trials : static_cast<int>(works.size());
  std::printf("seed %llu, %d trials on %s\n", static_cast<unsigned long long>(options.seed), trials,
              options.hosts.c_str());
  int failures = 0;
  for (int number = 0; number < trials; ++number) {
    Order order;
    // A stride without a common factor: a few trials are of many kinds.
    const std::size_t turn = (static_cast<std::size_t>(number) * 7 + options.seed) % works.size();
    order.work = options.work.empty() ? works[turn].name : options.work;
    order.victim = below(ranks);
    order.signal = below(2) == 0 ? SIGKILL : SIGSTOP;
    if (options.signal != 0) order.signal = options.signal;
    order.timeout = options.timeout;
    order.calls = 1 + below(10);
    order.spins = below(200'000);
    std::printf("%3d %-24s rank %d of %d, %s, call %d + %d: ", number, order.work.c_str(),
                order.victim, ranks, order.signal == SIGKILL ? "killed" : "stopped", order.calls,
                order.spins);
    std::fflush(stdout);
    try {
      const auto took = strike(options, ranks, order, self);
      std::printf("%lld ms\n", static_cast<long long>(took.count()));
    } catch (const std::exception& error) {
      std::printf("FAILED: %s\n", error.what());
      ++failures;
    }
  }
  std::printf("%d of %d trials failed\n", failures, trials);
  return failures == 0 ? 0 : 1;
}

/** A number that an int holds. */
int count_of(std::string_view name, std::string_view value) {
  return number_of<std::uint16_t>(name, value);
}

Options parse(std::span<char* const> arguments) {
  Options options;
  const auto take = [&options](std::string_view name, const std::string& value) {
    if (name == "--mpiexec") {
      options.mpiexec = value;
    } else if (name == "--hosts") {
      options.hosts = value;
    } else if (name == "--trials") {
      options.trials = count_of(name, value);
    } else if (name == "--seed") {
      options.seed = number_of<std::uint64_t>(name, value);
    } else if (name == "--work") {
      options.work = work_of(value).name;
    } else if (name == "--signal") {
      if (value != "kill" && value != "stop") refuse("--signal is '", value, "', not kill or stop");
      options.signal = value == "kill" ? SIGKILL : SIGSTOP;
    } else if (name == "--timeout") {
      options.timeout = count_of(name, value);
    } else {
      return false;
    }
    return true;
  };
  options.help = !take_options(arguments, take);
  return options;
}

int dispatch(const std::string& self, std::span<char* const> arguments) {
  const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const char* size = std::getenv("OMPI_COMM_WORLD_SIZE");
  if (rank != nullptr && size != nullptr) {
    const std::vector<std::string> words(arguments.begin(), arguments.end());
    return be_rank(std::stoi(rank), std::stoi(size),
                   {std::stoi(words.at(0)), std::stoi(words.at(1)), std::stoi(words.at(2)),
                    std::stoi(words.at(3)), words.at(4), std::stoi(words.at(5))});
  }
  const Options options = parse(arguments);
  if (!options.help) return run(options, self);
  std::fputs(kHelp, stdout);
  return 0;
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  try {
    return tutti::test::dispatch(argv[0], {argv + 1, argv + argc});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "mpi_rig: %s\n", error.what());
    return 2;
  }
}
