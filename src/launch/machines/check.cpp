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
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <span>
#include <utility>

#include "base/environment.hpp"
#include "base/file_descriptor.hpp"
#include "base/refuse.hpp"
#include "base/system.hpp"
#include "base/text.hpp"
#include "launch/machines/answer.hpp"
#include "launch/machines/machine.hpp"
#include "launch/machines/mpiexec.hpp"
#include "launch/process/lists.hpp"
#include "launch/process/process.hpp"
#include "launch/process/timer.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kLimit{10};
constexpr milliseconds kLook{20};             // how often whoever brings an answer may have ended
constexpr std::chrono::seconds kEndGrace{2};  // of mpiexec, and of what it has started
constexpr std::size_t kMostAlone = 16;        // processes of mpiexec at a time

double seconds_of_clock() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/** How a program is run on another machine: what comes before its name. Throws InvalidArgument if
 * there is no such program here. */
std::vector<std::string> remote_shell() {
  std::vector<std::string> words;
  for (const std::string& word :
       split_list(environment("OMPI_MCA_plm_rsh_agent").value_or("ssh"), ' ')) {
    if (!word.empty()) words.push_back(word);
  }
  if (words.empty()) words = {"ssh"};
  if (words.front().find('/') == std::string::npos) {
    const auto found = find_in_path(words.front());
    if (!found) {
      refuse(words.front(), ", by which other machines are reached, is not in PATH on ",
             host_name(), " (OMPI_MCA_plm_rsh_agent names another program)");
    }
    words.front() = *found;
  }
  if (fs::path(words.front()).filename() == "ssh") {
    words.insert(words.end(), {"-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=8"});
  }
  return words;
}

/** What brings a question to machines: mpiexec, or a shell to another one; neither to this one. */
struct Carrier {
  bool by_mpiexec = false;
  std::vector<std::string> shell{};
  fs::path session{};  // a directory of its own for mpiexec's files, which it makes and removes

  std::string describe() const {
    if (by_mpiexec) return "mpiexec";
    return shell.empty() ? own_path() : join_list(shell, " ");
  }
};

/** A process that carries the question to machines, and brings their answers. */
struct Question {
  std::vector<Host> hosts;
  Carrier carrier;
  std::string program;  // of the process
  pid_t process = 0;
  FileDescriptor answer_end;
  std::string answer;
  double asked = 0;
  double answered = 0;
  bool ended = false;
  bool late = false;
  ExitStatus status;
};

/** Arguments of the program are not among the words: others on the machine could read them. */
std::vector<std::string> check_command(const std::vector<Host>& hosts,
                                       const std::vector<std::string>& files) {
  std::vector<std::string> ranks;
  for (const Host& host : hosts) {
    ranks.push_back(std::to_string(host.slots));
    for (const int port : host.ports) ranks.back() += ":" + std::to_string(port);
  }
  std::vector<std::string> words{own_path(), "check", "--ranks", join_list(ranks), "--"};
  words.insert(words.end(), files.begin(), files.end());
  return words;
}

Question ask(std::vector<Host> hosts, Carrier carrier, const std::vector<std::string>& files) {
  Question question;
  question.hosts = std::move(hosts);
  question.carrier = std::move(carrier);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  question.answer_end.reset(ends[0]);
  const FileDescriptor write_end(ends[1]);
  const FileDescriptor nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ProcessStart start;
  start.arguments = check_command(question.hosts, files);
  FileDescriptor hostfile;
  if (question.carrier.by_mpiexec) {
    std::vector<std::string> names;
    for (const Host& host : question.hosts) names.push_back(host.name);
    hostfile = write_hostfile(names);
    std::vector<std::string> words = mpiexec_words(name_of_inherited(hostfile), "none");
    words.front() = files_of_program(words.front(), false).front();
    if (const fs::path& session = question.carrier.session; !session.empty()) {
      words.insert(words.end(), {"--mca", "orte_top_session_dir", session});
    }
    words.insert(words.end(), {"-n", std::to_string(names.size())});
    start.arguments.insert(start.arguments.begin(), words.begin(), words.end());
    start.inherited = {hostfile.get()};
  } else if (!question.carrier.shell.empty()) {
    std::vector<std::string> words = question.carrier.shell;
    words.push_back(question.hosts.front().name);
    words.push_back("cd " + shell_text({fs::current_path()}) + " && exec " +
                    shell_text(start.arguments));
    start.arguments = std::move(words);
  }
  question.program = start.arguments.front();
  start.environment = environment_with({});
  start.standard[0] = nothing.get();
  start.standard[1] = start.standard[2] = write_end.get();
  start.own_group = true;
  start.death_signal = question.carrier.by_mpiexec ? SIGTERM : SIGKILL;
  question.asked = seconds_of_clock();
  question.process = start_process(start);
  return question;
}

/** Takes what there is of the answer. It ends with the process that brings it: that may close its
 * output earlier, and who outlives it, such as the master of ssh's connections, may keep it. */
void listen(Question& question) {
  int status = 0;
  question.ended = ::waitpid(question.process, &status, WNOHANG) == question.process;
  if (question.ended) question.status = ExitStatus::from_wait(status);
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

/** Takes what comes of the answers until all have ended, or that moment. */
void listen_until(std::vector<Question>& questions, SteadyClock::time_point deadline) {
  const auto open = [](const Question& question) { return !question.ended; };
  while (std::any_of(questions.begin(), questions.end(), open)) {
    const auto left = std::chrono::ceil<milliseconds>(deadline - SteadyClock::now()).count();
    if (left <= 0) return;
    std::vector<pollfd> sources;
    for (const Question& question : questions) {
      sources.push_back({question.answer_end.get(), POLLIN, 0});
    }
    ::poll(sources.data(), sources.size(), static_cast<int>(std::min(left, kLook.count())));
    for (Question& question : questions) {
      if (!question.ended) listen(question);
    }
  }
}

/** Hears the answers, for so long; nobody who carries one is left then. */
void hear(std::vector<Question>& questions, const std::set<pid_t>& others) {
  listen_until(questions, SteadyClock::now() + kLimit);
  std::vector<Question*> late;
  for (Question& question : questions) {
    if (!question.ended) late.push_back(&question);
  }
  if (late.empty()) return;
  if (late.front()->carrier.by_mpiexec) {
    // srun gives back what it holds of the job when it is asked to end.
    signal_descendants(SIGTERM, others);
    listen_until(questions, SteadyClock::now() + kEndGrace);
    signal_descendants(SIGKILL, others);
  }
  for (Question* const question : late) {
    question->late = true;
    if (question->ended) continue;
    ::kill(-question->process, SIGKILL);
    ::waitpid(question->process, nullptr, 0);
    std::error_code ignored;
    if (!question->carrier.session.empty()) fs::remove_all(question->carrier.session, ignored);
  }
}

std::string last_line(const std::string& text) {
  std::string last;
  for (const std::string& line : split_list(text, '\n')) {
    if (!line.empty()) last = line;
  }
  return last;
}

/** What mpiexec has printed, below a fault. */
std::string quoted(const std::string& printed) {
  std::string lines;
  for (const std::string& line : split_list(mpiexec_said(printed), '\n')) lines += "\n  | " + line;
  return lines;
}

/** Why there is no answer. */
std::string silence(const Question& question) {
  if (question.late) {
    return "no answer within " + std::to_string(kLimit.count()) + " s (" +
           question.carrier.describe() + ")" +
           (question.carrier.by_mpiexec ? quoted(question.answer) : "");
  }
  if (question.carrier.by_mpiexec) {
    return "mpiexec has not started a process there (" + question.status.describe() + ")" +
           quoted(question.answer);
  }
  const std::string said = last_line(question.answer);
  const auto unrun = said.find(not_run(question.program));
  if (unrun != std::string::npos) return said.substr(unrun);
  if (question.status.code == 127) {
    return "there is no " + own_path() +
           " (tutti is to be installed at the same place on all machines): " + said;
  }
  return said.empty()
             ? "asked by " + question.carrier.describe() + ": " + question.status.describe()
             : said;
}

/** What is wrong with a machine that has answered; empty if nothing is. */
std::string fault_of(Facts& facts, const std::string& own_mpi) {
  if (facts["version"] != TUTTI_VERSION) {
    return "its tutti is " + facts["version"] + ", but here it is " TUTTI_VERSION;
  }
  if (facts["mpi"] != own_mpi) {
    return "its mpiexec is '" + facts["mpi"] + "', but here it is '" + own_mpi + "'";
  }
  return facts["fault"];
}

CheckedMachine checked_machine(Facts& facts, const Question& question) {
  CheckedMachine machine;
  machine.processors = parse_number<std::size_t>(facts["processors"]).value_or(1);
  for (const std::string& port : split_list(facts["ports"])) {
    machine.ports.push_back(parse_number<int>(port).value_or(0));
  }
  const double clock = std::strtod(facts["clock"].c_str(), nullptr);
  machine.clock_ahead = clock < question.asked      ? clock - question.asked
                        : clock > question.answered ? clock - question.answered
                                                    : 0.0;
  return machine;
}

/** What is known of the machines of a job. */
struct Findings {
  std::string own_mpi;
  std::map<std::string, CheckedMachine> machines;
  std::map<std::string, std::string> faults;  // by the machine's name
  std::map<std::string, std::string> silent;  // why there is no answer
  std::map<std::string, std::string> named;   // what machines were asked as, by what they are

  void take(const Question& question) {
    auto answers = find_answers(question.answer);
    for (std::size_t i = 0; i < question.hosts.size(); ++i) {
      const std::string& name = question.hosts[i].name;
      const auto facts = answers.find(i);
      silent.erase(name);
      if (facts == answers.end()) {
        silent[name] = silence(question);
      } else if (const std::string fault = fault_of(facts->second, own_mpi); !fault.empty()) {
        faults[name] = fault;
      } else if (const auto [same, first] =
                     named.emplace(facts->second["kernel"] + facts->second["name"], name);
                 !first && same->second != name) {
        faults[name] =
            "is " + same->second + " again: the ranks of a machine are given by one of its names";
      } else {
        machines[name] = checked_machine(facts->second, question);
      }
    }
  }
};

/** Processes of mpiexec that share their directory fail where one makes or removes it while another
 * looks for it. They make it, by a name that nobody can make before them. */
fs::path own_session(const std::string& machine) {
  std::uint64_t number = 0;
  fill_with_random(std::as_writable_bytes(std::span(&number, 1)), "a directory of mpiexec");
  return fs::temp_directory_path() / ("tutti-check." + std::to_string(number) + "." + machine);
}

/** Where mpiexec has not reached all machines, it may have reached none: those that have not
 * answered are asked alone, some at a time, until it is known who does not. */
void ask_alone(const std::vector<Host>& hosts, const std::vector<std::string>& files,
               const std::set<pid_t>& others, Findings& findings) {
  std::vector<Host> left;
  for (const Host& host : hosts) {
    if (findings.silent.contains(host.name)) left.push_back(host);
  }
  findings.silent.clear();
  for (std::size_t i = 0; i < left.size() && findings.silent.empty(); i += kMostAlone) {
    std::vector<Question> questions;
    for (std::size_t j = i; j < std::min(i + kMostAlone, left.size()); ++j) {
      Carrier carrier{.by_mpiexec = true, .session = own_session(left[j].name)};
      questions.push_back(ask({left[j]}, std::move(carrier), files));
    }
    hear(questions, others);
    for (const Question& question : questions) findings.take(question);
  }
}

}  // namespace

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

std::map<std::string, CheckedMachine> check_machines(const std::vector<Host>& hosts,
                                                     const std::vector<std::string>& files) {
  Findings findings;
  findings.own_mpi = mpi_version();
  constexpr std::string_view kNeeded =
      "ranks on several machines are started by Open MPI's mpiexec";
  if (findings.own_mpi.empty()) refuse(kNeeded, ", which is not in PATH on ", host_name());
  const auto is_of = [&](const char* name) {
    return findings.own_mpi.find(name) != std::string::npos;
  };
  if (!is_of("(Open MPI)") && !is_of("(OpenRTE)")) {  // as mpirun, and as mpiexec, says
    refuse(kNeeded, ", but that in PATH on ", host_name(), " says it is '", findings.own_mpi, "'");
  }
  const std::set<pid_t> others = descendants();
  const bool by_mpiexec = has_resource_manager();
  std::vector<Question> questions;
  if (by_mpiexec) {
    questions.push_back(ask(hosts, {.by_mpiexec = true}, files));
  } else {
    std::vector<Carrier> carriers;  // before the first is asked: the shell may be missing
    for (const Host& host : hosts) {
      carriers.push_back(is_this_machine(host.name) ? Carrier{} : Carrier{.shell = remote_shell()});
    }
    for (std::size_t i = 0; i < hosts.size(); ++i) {
      questions.push_back(ask({hosts[i]}, std::move(carriers[i]), files));
    }
  }
  hear(questions, others);
  for (const Question& question : questions) findings.take(question);
  if (by_mpiexec && hosts.size() > 1 && !findings.silent.empty()) {
    ask_alone(hosts, files, others, findings);
  }
  findings.faults.merge(findings.silent);
  std::vector<std::string> lines;
  for (const auto& [name, fault] : findings.faults) {
    lines.push_back(join_list(std::array{name, fault}, ": "));
  }
  if (!lines.empty()) throw InvalidArgument(join_list(lines, "\n"));
  return findings.machines;
}

}  // namespace tutti::launch
