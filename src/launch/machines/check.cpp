// Asks machines whether ranks can run on them.
#include "launch/machines/check.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <utility>

#include "base/environment.hpp"
#include "base/file_descriptor.hpp"
#include "base/refuse.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "launch/machines/machine.hpp"
#include "launch/process/lists.hpp"
#include "launch/process/process.hpp"
#include "launch/process/timer.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kLimit{10};
constexpr milliseconds kLook{20};  // how often whoever brings an answer may have ended

double seconds_of_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/** What `mpiexec --version` says first; empty if there is none. */
std::string mpi_version() {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen("mpiexec --version 2>/dev/null", "r"),
                                                   &::pclose);
  std::array<char, 256> line{};
  if (!pipe || std::fgets(line.data(), line.size(), pipe.get()) == nullptr) return {};
  std::string text = line.data();
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

std::string last_line(const std::string& text) {
  std::string last;
  for (const std::string& line : split_list(text, '\n')) {
    if (!line.empty()) last = line;
  }
  return last;
}

/** One machine that is being asked. */
struct Question {
  const Host* host = nullptr;
  pid_t process = 0;
  FileDescriptor answer_end;
  std::string answer;
  double asked = 0;
  double answered = 0;
  bool ended = false;
  int status = 0;
};

/** Arguments of the program are not among the words: others on the machine could read them. */
std::vector<std::string> check_command(const Host& host, const std::vector<std::string>& files) {
  std::vector<std::string> words{own_path(), "check", "--ranks", std::to_string(host.slots), "--"};
  words.insert(words.end(), files.begin(), files.end());
  return words;
}

void ask(Question& question, const std::vector<std::string>& files) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  question.answer_end.reset(ends[0]);
  const FileDescriptor write_end(ends[1]);
  const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessStart start;
  start.arguments = check_command(*question.host, files);
  if (!is_this_machine(question.host->name)) {
    std::vector<std::string> words = remote_shell();
    words.push_back(question.host->name);
    words.push_back("cd " + shell_text({fs::current_path()}) + " && exec " +
                    shell_text(start.arguments));
    start.arguments = std::move(words);
  }
  start.environment = environment_with({});
  start.standard[0] = nothing.get();
  start.standard[1] = start.standard[2] = write_end.get();
  start.own_group = true;
  start.death_signal = SIGKILL;
  question.asked = seconds_of_clock();
  question.process = start_process(start);
}

/** Takes what there is of the answer. It ends with the process that brings it: that may close its
 * output earlier, and who outlives it, such as the master of ssh's connections, may keep it. */
void listen(Question& question) {
  question.ended = ::waitpid(question.process, &question.status, WNOHANG) == question.process;
  std::array<char, 4096> buffer{};
  while (question.answer_end) {
    const ssize_t bytes = ::read(question.answer_end.get(), buffer.data(), buffer.size());
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0 && errno == EAGAIN) break;
    if (bytes <= 0) {
      question.answer_end.reset(-1);
      break;
    }
    question.answer.append(buffer.data(), static_cast<std::size_t>(bytes));
    question.answered = seconds_of_clock();
  }
}

/** What the machine has said, or why it is of no use. */
std::pair<CheckedMachine, std::string> understand(const Question& question,
                                                  const std::string& own_mpi) {
  CheckedMachine machine;
  const auto fault = [&](const std::string& text) { return std::pair(machine, text); };
  if (!question.ended) {
    return fault("no answer within " + std::to_string(kLimit.count()) + " s (" +
                 join_list(remote_shell(), " ") + ")");
  }
  std::map<std::string, std::string> facts;
  for (const std::string& line : split_list(question.answer, '\n')) {
    const auto blank = line.find(' ');
    if (line.starts_with("tutti-")) facts[line.substr(0, blank)] = line.substr(blank + 1);
  }
  const ExitStatus status = ExitStatus::from_wait(question.status);
  if (!status.success() || !facts.contains("tutti-clock")) {
    const std::string said = last_line(question.answer);
    if (status.code == 127) {
      return fault("there is no " + own_path() +
                   " (tutti is to be installed at the same place on "
                   "all machines): " +
                   said);
    }
    return fault(said.empty()
                     ? "asked by " + join_list(remote_shell(), " ") + ": " + status.describe()
                     : said);
  }
  if (facts["tutti-version"] != TUTTI_VERSION) {
    return fault("its tutti is " + facts["tutti-version"] + ", but here it is " TUTTI_VERSION);
  }
  if (facts["tutti-mpi"] != own_mpi) {
    return fault("its mpiexec is '" + facts["tutti-mpi"] + "', but here it is '" + own_mpi + "'");
  }
  machine.name = facts["tutti-name"];
  for (const std::string& port : split_list(facts["tutti-ports"])) {
    machine.ports.push_back(parse_number<int>(port).value_or(0));
  }
  const double clock = std::strtod(facts["tutti-clock"].c_str(), nullptr);
  machine.clock_ahead = clock < question.asked      ? clock - question.asked
                        : clock > question.answered ? clock - question.answered
                                                    : 0.0;
  return {machine, {}};
}

}  // namespace

std::string own_path() {
  std::error_code error;
  const auto path = fs::read_symlink("/proc/self/exe", error);
  return error || !fs::exists(path, error) ? "/proc/self/exe" : path.string();
}

std::string shell_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    if (!text.empty()) text += ' ';
    text += '\'';
    for (const char character : word) {
      text += character == '\'' ? std::string("'\\''") : std::string(1, character);
    }
    text += '\'';
  }
  return text;
}

std::vector<std::string> remote_shell() {
  const std::string agent = environment("OMPI_MCA_plm_rsh_agent").value_or("ssh");
  std::vector<std::string> words;
  for (const std::string& word : split_list(agent, ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  if (fs::path(words.front()).filename() == "ssh") {
    words.insert(words.end(), {"-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=8"});
  }
  return words;
}

std::map<std::string, CheckedMachine> check_machines(const std::vector<Host>& hosts,
                                                     const std::vector<std::string>& files) {
  const std::string own_mpi = mpi_version();
  if (own_mpi.empty()) {
    refuse("ranks on several machines are started by Open MPI's mpiexec, which is not in PATH on ",
           host_name());
  }
  std::vector<Question> questions(hosts.size());
  for (std::size_t i = 0; i < hosts.size(); ++i) {
    questions[i].host = &hosts[i];
    ask(questions[i], files);
  }
  const auto deadline = SteadyClock::now() + kLimit;
  const auto open = [](const Question& question) { return !question.ended; };
  while (std::any_of(questions.begin(), questions.end(), open)) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - SteadyClock::now()).count();
    if (left <= 0) break;
    std::vector<pollfd> sources;
    for (const Question& question : questions) {
      sources.push_back({question.answer_end.get(), POLLIN, 0});
    }
    ::poll(sources.data(), sources.size(), static_cast<int>(std::min(left, kLook.count())));
    for (Question& question : questions) {
      if (!question.ended) listen(question);
    }
  }
  std::map<std::string, CheckedMachine> machines;
  std::string faults;
  for (Question& question : questions) {
    if (!question.ended) {
      ::kill(-question.process, SIGKILL);
      ::waitpid(question.process, nullptr, 0);
    }
    const auto [machine, fault] = understand(question, own_mpi);
    machines[question.host->name] = machine;
    if (!fault.empty()) {
      faults += (faults.empty() ? "" : "\n") + question.host->name + ": " + fault;
    }
  }
  if (!faults.empty()) throw InvalidArgument(faults);
  return machines;
}

int run_check(const std::vector<std::string>& arguments) {
  if (arguments.size() < 4 || arguments[0] != "--ranks" || arguments[2] != "--") {
    refuse("tutti check is for tutti run, which asks machines by it");
  }
  const int ranks = parse_number<int>(arguments[1]).value_or(1);
  check_files({arguments.begin() + 3, arguments.end()});
  check_shared_memory(ranks);
  ReservedPorts free;
  std::vector<std::string> ports;
  for (int port = 0; port < ranks + 2; ++port) ports.push_back(std::to_string(free.take()));
  std::printf("tutti-version %s\ntutti-name %s\ntutti-mpi %s\ntutti-ports %s\ntutti-clock %.6f\n",
              TUTTI_VERSION, host_name().c_str(), mpi_version().c_str(), join_list(ports).c_str(),
              seconds_of_clock());
  return 0;
}

}  // namespace tutti::launch
