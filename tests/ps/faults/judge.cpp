// Starts a trial's processes, strikes, and looks at what becomes of the others.
#include "ps/faults/judge.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "ps/table/place.hpp"
#include "ps/unit/stored_job.hpp"
#include "rig/processes.hpp"
#include "support/folder.hpp"
#include "tutti/error.hpp"
#include "tutti/ps/checkpoint.hpp"

namespace tutti::ps::faults {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

constexpr auto kStart = 20s;
constexpr auto kTraining = 60ms;  // after the fault
constexpr auto kAtOnce = 1s;      // a death on this machine is known
constexpr auto kSpare = 2s;       // a deadline may be passed by
constexpr auto kPause = 50ms;     // of those who wait for nobody: 5 % of a second

/** The processes of a trial, of which none outlives it. */
class Processes {
 public:
  Processes(const Trial& trial, Board& board) : trial_(trial), board_(board) {
    meeting_.folder = folder_.path();
    // Addresses that are this trial's alone, as good as certainly, so ports are free that
    // the kernel gives nobody who asks for any.
    const std::uint64_t own = mix64((static_cast<std::uint64_t>(::getpid()) << 32U) +
                                    static_cast<std::uint64_t>(trial.number));
    const std::string host = "127." + std::to_string(128 + own % 100) + "." +
                             std::to_string(own / 100 % 256) + "." +
                             std::to_string(1 + own / 25'600 % 254) + ":";
    for (int server = 0; server < trial.servers; ++server) {
      meeting_.endpoints += (server > 0 ? "," : "") + host + std::to_string(16'000 + server);
    }
    for (int process = 0; process < trial.processes(); ++process) {
      const pid_t pid = ::fork();
      if (pid == 0) live(trial, process, meeting_, board);
      pids_.push_back(pid);
      codes_.push_back(-1);
    }
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  ~Processes() {
    for (std::size_t i = 0; i < pids_.size(); ++i) {
      if (codes_[i] >= 0) continue;
      ::kill(pids_[i], SIGKILL);
      ::waitpid(pids_[i], nullptr, 0);
    }
  }

  const std::string& folder() const { return meeting_.folder; }
  void signal(int process, int number) { ::kill(pids_[static_cast<std::size_t>(process)], number); }
  /** Whether it has ended, and how: 128 and the signal, or its exit code. */
  bool ended(int process) {
    const auto i = static_cast<std::size_t>(process);
    int status = 0;
    if (codes_[i] < 0 && ::waitpid(pids_[i], &status, WNOHANG) == pids_[i]) {
      codes_[i] = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    }
    return codes_[i] >= 0;
  }
  int code(int process) const { return codes_[static_cast<std::size_t>(process)]; }
  bool all_ended() {
    bool all = true;
    for (int process = 0; process < trial_.processes(); ++process) all = ended(process) && all;
    return all;
  }
  bool all_ready() {
    for (int process = 0; process < trial_.processes(); ++process) {
      if (!board_.notes[static_cast<std::size_t>(process)].ready) return false;
    }
    return true;
  }

 private:
  const Trial& trial_;
  Board& board_;
  tutti::test::Folder folder_;
  Meeting meeting_;
  std::vector<pid_t> pids_;
  std::vector<int> codes_;
};

class Judge {
 public:
  explicit Judge(const Trial& trial) : trial_(trial), processes_(trial, *board_) {}

  Verdict judge() {
    if (!test::holds_within(kStart, [&] { return processes_.all_ready(); })) {
      verdict_.late = "they did not start";
      tell_ends();
      return verdict_;
    }
    std::this_thread::sleep_for(trial_.delay);
    strike();
    std::this_thread::sleep_for(kTraining);
    board_->over = trial_.others_go_on();  // or else they are to find out
    const bool in_time = test::holds_within(time_to_find_out() + kSpare + kAtOnce,
                                            [&] { return workers_are_through(); });
    board_->over = true;
    // Who was stopped goes on when the others have noticed, or have done without it. Servers that
    // wait for it end then, and wait for each other's parts of the checkpoint.
    if (trial_.fault == Fault::stop) processes_.signal(trial_.victim, SIGCONT);
    const bool all_ended =
        test::holds_within(2 * kDeadline + kSpare, [&] { return processes_.all_ended(); });
    if (!in_time || !all_ended) {
      verdict_.wrong += in_time ? "at the end, " : "in time, ";
      verdict_.wrong += "they have not ended; ";
      tell_ends();
      return verdict_;
    }
    for (int process = 0; process < trial_.processes(); ++process) judge_end(process);
    judge_checkpoint();
    if (!verdict_.wrong.empty() || !verdict_.late.empty()) tell_ends();
    return verdict_;
  }

 private:
  Notes& notes(int process) { return board_->notes[static_cast<std::size_t>(process)]; }
  double seconds_until(std::int64_t time) const {
    return static_cast<double>(time - struck_at_) * 1e-9;
  }

  /** Where rounds go on without a worker that is a server as well, it is missed as the one first,
   * and then as the other. */
  std::chrono::seconds time_to_find_out() const {
    const auto* sync = std::get_if<Sync>(&trial_.mode);
    const bool twice = trial_.layout == Layout::threads && sync && sync->continue_after_loss;
    return twice ? 2 * kDeadline : kDeadline;
  }

  /** All but the victim have ended, or wait for nothing but servers that are threads of theirs. */
  bool workers_are_through() {
    bool all = true;
    for (int worker = 0; worker < trial_.workers; ++worker) {
      const bool is_through = processes_.ended(worker) || notes(worker).ended_at > 0;
      if (worker != trial_.victim && !is_through) all = false;
    }
    return all;
  }

  void strike() {
    constexpr std::array kSignals{SIGKILL, SIGSTOP, SIGUSR1};
    struck_at_ = now();
    processes_.signal(trial_.victim, kSignals.at(static_cast<std::size_t>(trial_.fault)));
    board_->struck = true;
  }

  /** Ranks that may be named for the victim; where servers are threads, one is both. */
  std::int64_t culprits() const {
    const std::int64_t own = std::int64_t{1} << trial_.victim;
    return trial_.layout == Layout::threads ? own | own << trial_.workers : own;
  }

  void wrong(int process, const std::string& what) {
    verdict_.wrong +=
        (trial_.is_worker(process) ? "worker " + std::to_string(process)
                                   : "server " + std::to_string(process - trial_.workers)) +
        " " + what + "; ";
  }

  void judge_end(int process) {
    const Notes& of = notes(process);
    const int code = processes_.code(process);
    if (process == trial_.victim) {
      // A server that comes back too late says that there is no last checkpoint.
      const bool fits = trial_.fault == Fault::kill
                            ? code == 128 + SIGKILL
                            : code == 0 || code == 3 || (code == 4 && !trial_.is_worker(process));
      if (!fits) wrong(process, "ended with " + std::to_string(code));
      return;
    }
    const bool must_lose = trial_.is_worker(process) && !trial_.others_go_on();
    // Where a server is missing, there is no last checkpoint, which the other servers say. So it
    // is in sync mode where a worker has died between the ends of its step on two servers.
    const std::string_view text(of.text.data());
    const bool rounds_differ = trial_.is_sync() && text.find(" is of round ") != text.npos;
    const bool may_complain =
        !trial_.is_worker(process) && (!trial_.is_worker(trial_.victim) || rounds_differ);
    if (code != (must_lose ? 3 : 0) && !(may_complain && code == 4)) {
      wrong(process, "ended with " + std::to_string(code) + ", not " + (must_lose ? "3" : "0"));
      return;
    }
    verdict_.rounds_differ = verdict_.rounds_differ || (code == 4 && rounds_differ);
    if (must_lose) {
      if ((of.lost_ranks & ~culprits()) != 0) wrong(process, "blames somebody else");
      const double after = seconds_until(of.ended_at);
      verdict_.told_after = std::max(verdict_.told_after, after);
      const double limit = trial_.fault == Fault::stop
                               ? std::chrono::duration<double>(time_to_find_out() + kSpare).count()
                               : std::chrono::duration<double>(kAtOnce).count();
      if (after > limit) verdict_.late = "known after " + std::to_string(after) + " s";
    } else if (trial_.is_worker(process) && !trial_.is_sync()) {
      const double pause = static_cast<double>(of.longest_step) * 1e-9;
      verdict_.longest_step = std::max(verdict_.longest_step, pause);
      if (pause > std::chrono::duration<double>(kPause).count()) {
        verdict_.late = "a step took " + std::to_string(pause) + " s";
      }
    }
  }

  /** What is saved is whole, and if all servers have lived to the end has what was acknowledged. */
  void judge_checkpoint() {
    if (!fs::exists(fs::path(processes_.folder()) / "manifest")) {
      if (trial_.others_go_on()) verdict_.wrong += "nothing was saved; ";
      return;
    }
    try {
      inspect_checkpoint(processes_.folder());
      StoredJob job(options_of(trial_, "").tables, {}, 1, 0);
      job.load(processes_.folder());
      if (trial_.others_go_on() && trial_.fault == Fault::kill) judge_rows(job.rows(0));
    } catch (const Error& error) {
      verdict_.wrong += std::string(error.what()) + "; ";
    }
  }

  void judge_rows(const std::map<std::int64_t, StoredJob::Row>& rows) {
    const bool is_geo = std::holds_alternative<Geo>(trial_.mode);
    for (int worker = 0; worker < trial_.workers; ++worker) {
      // In sync mode a round adds 6 / live; in GEO mode a lost worker's progress comes in parts.
      const double most = trial_.is_sync() ? 6 : 1;
      const double least = trial_.is_sync() ? 6.0 / trial_.workers : 1;
      const bool lost = worker == trial_.victim;
      const double low =
          is_geo && lost ? 0 : least * static_cast<double>(notes(worker).acknowledged);
      const double high = most * static_cast<double>(notes(worker).attempted);
      for (std::int64_t i = 0; i < kIds; ++i) {
        const auto found = rows.find(counter(worker, i));
        const double value = found == rows.end() ? 0 : std::get<0>(found->second).front();
        const double slack = is_geo ? 1e-3 * high + 1e-3 : 0;
        if (value < low - slack || value > high + slack) {
          wrong(worker, "has a counter of " + std::to_string(value) + ", not " +
                            std::to_string(low) + " to " + std::to_string(high));
          return;
        }
      }
    }
  }

  void tell_ends() {
    for (int process = 0; process < trial_.processes(); ++process) {
      wrong_or_late() +=
          "\n  process " + std::to_string(process) + ": code " +
          std::to_string(processes_.code(process)) + ", steps " +
          std::to_string(notes(process).attempted) + ", " +
          (notes(process).ended_at > 0
               ? std::to_string(seconds_until(notes(process).ended_at)) + " s after it: "
               : "") +
          notes(process).text.data();
    }
  }
  std::string& wrong_or_late() { return verdict_.wrong.empty() ? verdict_.late : verdict_.wrong; }

  const Trial& trial_;
  test::Shared<Board> board_;
  Processes processes_;
  Verdict verdict_;
  std::int64_t struck_at_ = 0;
};

}  // namespace

Verdict run(const Trial& trial) { return Judge(trial).judge(); }

}  // namespace tutti::ps::faults
