// The loop of a rank's wrapper: signals, messages of the launcher, the rank's output.
#include "launch/wrapper.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <string_view>
#include <utility>

#include "base/file_descriptor.hpp"
#include "base/launcher_line.hpp"
#include "base/text.hpp"
#include "launch/process/channel.hpp"
#include "launch/process/log_file.hpp"
#include "launch/process/process.hpp"
#include "launch/process/text_lines.hpp"
#include "launch/process/timer.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kLeftoverGrace{1000};  // of processes that outlive a rank that just ended
constexpr milliseconds kOrphanGrace{2000};    // of a rank that outlives the launcher
constexpr milliseconds kKillInterval{20};     // those killed may have had time to fork
constexpr milliseconds kProgressInterval{200};
constexpr std::size_t kOutputPiece = 128 << 10;  // read at once
constexpr std::size_t kMostUnsent = 1U << 20;    // then the rank waits for who reads what is shown
constexpr int kPipeBytes = 1 << 20;

/** What the kernel sends when the parent ends, and nobody else does. A parent of several threads
 * may still be there when it comes, since the one that has forked ends first. */
int parent_signal() { return SIGRTMIN; }

struct Pipe {
  FileDescriptor read;
  FileDescriptor write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw SystemError("cannot make a pipe", errno);
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  ::fcntl(ends[1], F_SETPIPE_SZ, kPipeBytes);  // where the user may; else it is shorter
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

/** Whether who is sent it is to end. */
bool is_to_end(int signal) {
  return signal == SIGTERM || signal == SIGINT || signal == SIGHUP || signal == SIGQUIT;
}

/** Now, on the clock that all processes of a machine share. */
std::string moment_text() { return std::to_string(SteadyClock::now().time_since_epoch().count()); }

class Wrapper {
 public:
  Wrapper(const WrapperOptions& options, pid_t parent)
      : options_(options),
        progress_pipe_(make_pipe()),
        signals_({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCONT, SIGTSTP,
                  parent_signal()}),
        parent_(parent),
        log_(options.log),
        control_(FileDescriptor(options.control)),
        output_(FileDescriptor(options.output)) {
    for (const int socket : {options.control, options.output}) {
      if (socket >= 0) ::fcntl(socket, F_SETFD, FD_CLOEXEC);
    }
  }

  int run() {
    ::setsid();  // Ctrl-C is the launcher's to pass on
    ::prctl(PR_SET_PDEATHSIG, parent_signal());
    adopt_orphans();
    start();
    if (::getppid() != parent_) parent_gone();  // before its death signal was asked for
    while (!finished()) step();
    const Tail& tail = err_tail_.text().empty() ? out_tail_ : err_tail_;
    control_.send(MessageType::closed, tail.text());
    while (control_.unsent() > 0 || output_.unsent() > 0) step();
    // What nobody reads for minutes the kernel would drop, once no process had this end any more.
    if (output_.remote()) {
      output_.finish();
      finishing_ = true;
      while (output_.open()) step();
    }
    return status_.shell_code();
  }

 private:
  /** Output of the rank. */
  struct Stream {
    FileDescriptor read;
    MessageType type;
    bool shown;
    Tail* tail;
  };

  void start();
  bool finished() const { return ended_ && alone_ && !out_.read && !err_.read; }
  void step();
  void take_signals();
  void reap();
  void rank_ended(int status);
  void end_leftovers();
  void launcher_gone();
  void parent_gone();
  void take_message(MessageType type, std::string_view text);
  void end_unneeded();
  void pass_on(int signal);
  void kill_all();
  void tell_log_failure();
  void pump(Stream& stream);
  void read_progress();
  void send_progress();

  const WrapperOptions& options_;
  Pipe progress_pipe_;  // made first: some shells know no descriptors above 9
  SignalSet signals_;
  pid_t parent_;
  LogFile log_;
  Channel control_;
  Channel output_;
  Tail out_tail_;
  Tail err_tail_;
  Stream out_{{}, MessageType::out, options_.show_out, &out_tail_};
  Stream err_{{}, MessageType::err, options_.show_err, &err_tail_};
  std::string progress_text_;  // not sent yet
  Timer progress_timer_;
  Timer kill_timer_;
  pid_t rank_ = 0;
  ExitStatus status_;
  bool ended_ = false;        // the rank
  bool alone_ = false;        // and all that descends from it
  bool finishing_ = false;    // all has been sent
  bool told_to_end_ = false;  // by the launcher
  bool ends_by_itself_ = false;
  bool launcher_gone_ = false;
  bool orphaned_ = false;
};

void Wrapper::start() {
  ProcessStart start;
  start.arguments = options_.command;
  start.cpus = options_.cpus;
  start.own_group = true;
  start.death_signal = SIGKILL;
  Pipe out;
  Pipe err;
  if (options_.output >= 0) {
    out = make_pipe();
    err = make_pipe();
    start.standard[1] = out.write.get();
    start.standard[2] = err.write.get();
  }
  const int progress = progress_pipe_.write.get();
  ::fcntl(progress, F_SETFL, O_NONBLOCK);  // telling it never holds a rank up
  start.inherited = {progress};
  start.environment = environment_with({{"TUTTI_PROGRESS_FD", std::to_string(progress)}});
  rank_ = start_process(start);
  out_.read = std::move(out.read);
  err_.read = std::move(err.read);
  progress_pipe_.write.reset(-1);
  control_.send(MessageType::started, std::to_string(rank_));
  tell_log_failure();
}

void Wrapper::step() {
  if (options_.control >= 0 && !control_.open()) launcher_gone();
  // While the launcher does not take what it is to show, the rank's output stays in its pipe.
  const bool room = output_.unsent() < kMostUnsent || alone_;
  enum Source { signals, control, output, out, err, progress, count };
  std::array<pollfd, count> sources{};
  const auto watch = [&](Source source, int descriptor, bool wanted, short events) {
    sources[source] = {wanted ? descriptor : -1, events, 0};
  };
  watch(signals, signals_.descriptor(), true, POLLIN);
  watch(control, control_.descriptor(), true,
        static_cast<short>(control_.unsent() > 0 ? POLLIN | POLLOUT : POLLIN));
  watch(output, output_.descriptor(), finishing_ || output_.unsent() > 0,
        finishing_ ? POLLIN : POLLOUT);
  watch(out, out_.read.get(), room, POLLIN);
  watch(err, err_.read.get(), room, POLLIN);
  watch(progress, progress_pipe_.read.get(), !ended_, POLLIN);
  ::poll(sources.data(), sources.size(), poll_timeout({&kill_timer_, &progress_timer_}));

  if (sources[signals].revents != 0) take_signals();
  if ((sources[control].revents & POLLOUT) != 0) control_.flush();
  if ((sources[control].revents & ~POLLOUT) != 0) {
    const bool there = control_.receive(
        [&](MessageType type, std::string_view text) { take_message(type, text); });
    if (!there) control_.close();
  }
  if (sources[output].revents != 0) {
    output_.flush();
    if (finishing_ && !output_.receive([](MessageType, std::string_view) {})) output_.close();
  }
  // Once nobody is left to write, what is there is all there will be.
  if (room && (sources[out].revents != 0 || alone_)) pump(out_);
  if (room && (sources[err].revents != 0 || alone_)) pump(err_);
  if (sources[progress].revents != 0) read_progress();
  if (progress_timer_.due()) send_progress();
  if (kill_timer_.due()) kill_all();
}

void Wrapper::take_signals() {
  while (const int signal = signals_.next()) {
    if (signal == SIGCHLD) {
      reap();
    } else if (signal == parent_signal()) {
      parent_gone();
    } else {
      pass_on(signal);
    }
  }
}

void Wrapper::reap() {
  const bool ended_before = ended_;
  for (;;) {
    int status = 0;
    const pid_t child = ::waitpid(-1, &status, WNOHANG | WUNTRACED | WCONTINUED);
    if (child < 0) alone_ = errno == ECHILD;
    if (child <= 0) break;
    if (child != rank_) continue;
    if (WIFSTOPPED(status)) {
      control_.send(MessageType::stopped, std::to_string(WSTOPSIG(status)));
    } else if (WIFCONTINUED(status)) {
      control_.send(MessageType::continued, "");
    } else {
      rank_ended(status);
    }
  }
  if (ended_ && !ended_before && !alone_) end_leftovers();
}

void Wrapper::rank_ended(int status) {
  status_ = ExitStatus::from_wait(status);
  read_progress();  // it may have said before that it ends by itself
  ended_ = true;
  control_.send(MessageType::ended, std::to_string(status_.code) + " " +
                                        std::to_string(status_.signal) + " " + moment_text());
}

/** Ends what has outlived the rank. A rank that was told to end has a grace, which is that of all
 * it has started, too: the launcher has them killed after it. */
void Wrapper::end_leftovers() {
  signal_descendants(SIGTERM);
  signal_descendants(SIGCONT);
  if (!told_to_end_ && !kill_timer_.set()) kill_timer_.start(kLeftoverGrace);
}

void Wrapper::launcher_gone() {
  if (std::exchange(launcher_gone_, true)) return;
  control_.close();
  output_.close();
  pass_on(SIGTERM);
  kill_timer_.start(kOrphanGrace);
}

void Wrapper::take_message(MessageType type, std::string_view text) {
  if (type == MessageType::unneeded) return end_unneeded();
  if (type != MessageType::signal) return;
  const int signal = parse_number<int>(text).value_or(SIGTERM);
  told_to_end_ = told_to_end_ || is_to_end(signal);
  pass_on(signal);
  if (signal == SIGCONT) control_.send(MessageType::passed_on, "");
}

/** What the rank said before the last worker ended is in the pipe now, but may have been on its way
 * to the launcher then. */
void Wrapper::end_unneeded() {
  read_progress();
  if (ends_by_itself_) return control_.send(MessageType::goes_on, "");
  told_to_end_ = true;
  pass_on(SIGTERM);
}

/** Who has started this process need not be the launcher, but Open MPI's daemon. */
void Wrapper::parent_gone() {
  if (std::exchange(orphaned_, true)) return;
  control_.send(MessageType::orphaned, "");
  pass_on(SIGTERM);
  kill_timer_.start(kOrphanGrace);
}

void Wrapper::pass_on(int signal) {
  switch (signal) {
    case SIGKILL:
      return kill_all();
    case SIGSTOP:
    case SIGTSTP:
      return stop_descendants();
    case SIGCONT:
      signal_descendants(SIGCONT);
      return;
    default:
      break;
  }
  if (ended_) return;
  // As a terminal does it: all processes of a script are interrupted. What else there is, the rank
  // passes on as it likes; what outlives it is ended.
  ::kill(signal == SIGINT ? -rank_ : rank_, signal);
  if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) ::kill(-rank_, SIGCONT);
}

void Wrapper::kill_all() {
  if (alone_) return kill_timer_.stop();
  signal_descendants(SIGKILL);
  kill_timer_.start(kKillInterval);
  reap();
}

void Wrapper::tell_log_failure() {
  const std::string reason = log_.take_failure();
  if (!reason.empty()) control_.send(MessageType::log_failed, reason);
}

void Wrapper::pump(Stream& stream) {
  static std::array<char, kOutputPiece> buffer;
  if (!stream.read) return;
  const ssize_t bytes = ::read(stream.read.get(), buffer.data(), buffer.size());
  if (bytes <= 0) {
    const bool later = bytes < 0 && (errno == EAGAIN || errno == EINTR);
    if (!later || alone_) stream.read.reset(-1);
    return;
  }
  const std::string_view text(buffer.data(), static_cast<std::size_t>(bytes));
  log_.write(text);
  tell_log_failure();
  stream.tail->append(text);
  if (stream.shown) output_.send(stream.type, text);
}

void Wrapper::read_progress() {
  static std::array<char, kPipeBytes> buffer;  // all that the rank may have said so far
  const ssize_t bytes = ::read(progress_pipe_.read.get(), buffer.data(), buffer.size());
  if (bytes <= 0) {
    if (bytes == 0 || (errno != EAGAIN && errno != EINTR)) progress_pipe_.read.reset(-1);
    return;
  }
  const std::string_view text(buffer.data(), static_cast<std::size_t>(bytes));
  for (std::string& line : last_lines(text, buffer.size())) {
    if (line == kEndsByItself || line == kIsFailing || line == kEndsForAnother) {
      ends_by_itself_ |= line == kEndsByItself;
      control_.send(MessageType::progress, line);  // is no progress, which the next line replaces
    } else {
      progress_text_ = std::move(line);
    }
  }
  if (!progress_timer_.set()) send_progress();
}

void Wrapper::send_progress() {
  if (progress_text_.empty()) return progress_timer_.stop();
  control_.send(MessageType::progress, std::exchange(progress_text_, {}));
  progress_timer_.start(kProgressInterval);
}

}  // namespace

int run_wrapper(const WrapperOptions& options, pid_t parent) {
  return Wrapper(options, parent).run();
}

}  // namespace tutti::launch
