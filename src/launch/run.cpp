// The way of a job from its options to its exit code.
#include "launch/run.hpp"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/system.hpp"
#include "base/text.hpp"
#include "launch/contract.hpp"
#include "launch/display.hpp"
#include "launch/mpi_job.hpp"
#include "launch/options.hpp"
#include "launch/placement.hpp"
#include "launch/plan.hpp"
#include "launch/process/lists.hpp"
#include "launch/report.hpp"
#include "launch/supervisor.hpp"
#include "tutti/error.hpp"

namespace tutti::launch {
namespace {

namespace fs = std::filesystem;

/** "20261122-201501-9f3a": of one run alone. */
std::string run_name() {
  const std::time_t now = std::time(nullptr);
  tm local{};
  ::localtime_r(&now, &local);
  std::array<char, 32> text{};
  const std::size_t length = std::strftime(text.data(), text.size(), "%Y%m%d-%H%M%S-", &local);
  std::array<std::byte, 2> random{};
  fill_with_random(random, "the name of a run");
  std::snprintf(text.data() + length, text.size() - length, "%02x%02x",
                std::to_integer<unsigned>(random[0]), std::to_integer<unsigned>(random[1]));
  return text.data();
}

/** Where the logs of a run are. */
struct LogFolder {
  fs::path path;        ///< empty: there is none
  std::string failure;  ///< why
};

/** Makes the folder of this run, and the link to it. A folder that cannot be is no reason not to
 * run, unless it was asked for: then it throws SystemError, but for a full disk. */
LogFolder make_log_folder(const std::optional<std::string>& log_dir) {
  const fs::path all = log_dir.value_or("log");
  const std::string name = run_name();
  std::error_code error;
  fs::create_directories(all / name, error);
  if (error) {
    const bool full = error == std::errc::no_space_on_device || error.value() == EDQUOT;
    if (log_dir && !full) throw SystemError("--log_dir " + *log_dir, error.value());
    return {{}, (all / name).string() + ": " + error.message()};
  }
  // Replaced as a whole, for who follows it.
  const fs::path link = all / ("last-" + name);
  fs::create_directory_symlink(name, link, error);
  if (!error) fs::rename(link, all / "last", error);
  if (error) fs::remove(link, error);
  return {all / name, {}};
}

std::string start_text(const Plan& plan, const LogFolder& logs) {
  std::string text = "tutti run: " + plan.describe() + " on " + plan.host;
  for (const std::string& note : plan.notes) text += "; " + note;
  return text +
         (logs.path.empty() ? "; no logs: " + logs.failure : "; logs in " + logs.path.string());
}

/** Waits until what is to be shown has been read: up to the next signal, or a second if the job did
 * not wait either. */
void drain(Display& display, const SignalSet& signals) {
  display.flush();
  Timer timer;
  if (display.hurries()) timer.start(std::chrono::seconds(1));
  for (;;) {
    std::array<pollfd, 3> sources{};
    sources[0] = {signals.descriptor(), POLLIN, 0};
    const auto watch = [](const Sink& sink) {
      return pollfd{sink.unwritten() > 0 ? sink.descriptor() : -1, POLLOUT, 0};
    };
    sources[1] = watch(display.out());
    sources[2] = watch(display.err());
    if ((sources[1].fd < 0 && sources[2].fd < 0) || timer.due()) return;
    ::poll(sources.data(), sources.size(), poll_timeout({&timer}));
    display.flush();
    while (const int signal = signals.next()) {
      if (signal != SIGCHLD && signal != SIGCONT) return;
    }
  }
}

void note_clocks(Plan& plan, const PlanSite& site) {
  constexpr double kMuch = 1;  // second
  for (const auto& [name, checked] : site.checked) {
    if (std::abs(checked.clock_ahead) < kMuch) continue;
    plan.notes.push_back("the clock of " + name + " is " +
                         number_text(std::round(std::abs(checked.clock_ahead))) + " s " +
                         (checked.clock_ahead > 0 ? "ahead" : "behind"));
  }
}

/** What would be started. */
void show_plan(const RunOptions& options, const PlanSite& site) {
  ReservedPorts ports(false);
  Plan plan = make_plan(options, site, 0, ports);
  set_logs(plan, fs::path(options.log_dir.value_or("log")) / run_name());
  std::fputs(describe(plan).c_str(), stdout);
  if (plan.machines.empty()) return;
  const auto words = mpiexec_command(plan, options, "HOSTFILE", "ADDRESSES");
  std::printf("\nstarted by: %s\n", join_list(words, " ").c_str());
}

/** Starts the ranks, and again as often as --restart says when one has failed. The exit code of the
 * last attempt. */
int run_attempts(const RunOptions& options, const PlanSite& site, Supervisor& supervisor,
                 Display& display) {
  std::optional<LogFolder> logs;
  int code = 0;  // of the last attempt
  for (int attempt = 0;; ++attempt) {
    ReservedPorts ports;
    Plan plan;
    Outcome outcome;
    const auto cannot_start_again = [&](const Error& error) {
      display.say("tutti run: they cannot be started again: " + std::string(error.what()));
      return code;
    };
    try {
      plan = make_plan(options, site, attempt, ports);
    } catch (const Error& error) {
      if (attempt == 0) throw;
      return cannot_start_again(error);
    }
    if (attempt == 0) note_clocks(plan, site);
    if (!logs) logs = make_log_folder(options.log_dir);  // not for what cannot be started
    const bool several = options.restarts > 0;
    if (!logs->path.empty()) {
      set_logs(plan, several ? logs->path / ("attempt." + std::to_string(attempt)) : logs->path);
    }
    if (attempt == 0) display.say(start_text(plan, *logs));
    ports.release();
    try {
      outcome = supervisor.run(plan);
    } catch (const Error& error) {
      if (attempt == 0) throw;
      return cannot_start_again(error);
    }
    display.finish();
    const std::string report = report_text(plan, outcome);
    if (!report.empty()) display.say(report);
    code = outcome.exit_code();
    const bool again = outcome.kind == Outcome::Kind::failed && !display.hurries();
    if (!again || attempt >= options.restarts) break;
    display.say("tutti run: starting all ranks again, restart " + std::to_string(attempt + 1) +
                " of " + std::to_string(options.restarts));
  }
  return code;
}

}  // namespace

int run(const std::vector<std::string>& arguments) {
  const RunOptions options = parse_run(arguments);
  if (options.help) {
    std::fputs(run_help().c_str(), stdout);
    return 0;
  }
  forget_own_launch();
  const Machine machine = this_machine();
  if (const auto starter = other_starter(options)) {
    std::fprintf(stderr,
                 "tutti run: %s, which is named first, starts the ranks of this machine, too, and "
                 "shows them, and ends with the job's exit code: nothing runs here now\n",
                 starter->c_str());
    return 0;
  }
  PlanSite site{machine, machines_of(options, machine), {}};
  if (options.dry_run) {
    show_plan(options, site);
    return 0;
  }
  adopt_orphans();
  std::signal(SIGCHLD, SIG_DFL);  // who ignores it is not told how a child has ended
  if (!site.machines.empty()) {
    site.checked =
        check_machines(site.machines, files_of_program(options.program.front(), options.module));
  }
  const SignalSet signals(
      {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT});
  Display display(options);
  Supervisor supervisor(options, signals, display);
  const int code = run_attempts(options, site, supervisor, display);
  drain(display, signals);
  return code;
}

}  // namespace tutti::launch
