// Watches a trial to its end, then compares what each rank says with what it should.
#include "rig/judge.hpp"

#include <algorithm>
#include <array>
#include <csignal>
#include <fstream>
#include <iomanip>
#include <iterator>
#include <memory>
#include <sstream>
#include <thread>

#include "rig/record.hpp"
#include "support/leftovers.hpp"
#include "tutti/communicator.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;
using Seconds = std::chrono::duration<double>;

constexpr Seconds kGrace = 1s;        // beyond the deadline
constexpr Seconds kAtOnce = 1s;       // for what needs no deadline
constexpr Seconds kHeartbeats = 10s;  // between hosts
constexpr Seconds kMpiexec = 5s;      // for mpiexec to end what is left of a job
constexpr Seconds kStart = 40s;       // until the fault strikes
constexpr Seconds kWhole = 60s;       // for a program without a fault
constexpr Seconds kPatience = 6s;     // beyond what is allowed: to tell late from never
constexpr Seconds kDoubtful = 400ms;

Seconds since(std::int64_t moment) { return std::chrono::nanoseconds(now() - moment); }
Seconds between(std::int64_t from, std::int64_t to) { return std::chrono::nanoseconds(to - from); }

class Judge {
 public:
  Judge(const Trial& trial, const Program& program)
      : trial_(trial),
        before_(sandbox_.has_own_shm() ? std::set<std::string>() : shared_files()),
        record_(make_record()),
        job_(trial, program, sandbox_, *record_) {}

  Verdict run() {
    watch();
    release();
    for (int rank = 0; rank < trial_.ranks; ++rank) examine(rank);
    examine_status();
    examine_leftovers();
    conclude();
    return std::move(verdict_);
  }

 private:
  std::shared_ptr<Record> make_record() const {
    const std::ofstream empty(sandbox_.file(kRecordFile));
    return map_record(sandbox_.file(kRecordFile));
  }
  void complain(const std::string& what) {
    verdict_.complaints.push_back(what);
    all_about_time_ = false;
  }
  /** Of what a busy machine may be the cause. */
  void complain_about_time(const std::string& what) { verdict_.complaints.push_back(what); }
  void complain(int rank, const std::string& what) {
    complain("rank " + std::to_string(rank) + " " + what);
  }

  // --- While it runs ----------------------------------------------------------------------------

  /** Waits for `done`, at most until limit() has passed. */
  template <class Done>
  bool wait(const Done& done, Seconds limit) {
    const std::int64_t start = now();
    for (;;) {
      job_.look();
      if (done()) return true;
      if (since(start) > limit + late()) return false;
      std::this_thread::sleep_for(1ms);
    }
  }

  /** For how long the machine kept the survivor that suffered most from running, since the fault.
   */
  Seconds late() const {
    std::int64_t most = 0;
    for (int rank = 0; rank < trial_.ranks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (trial_.is_victim(rank)) continue;
      most = std::max<std::int64_t>(most, record_->of(rank).late - late_before_[at]);
    }
    return std::chrono::nanoseconds(most);
  }

  template <class Condition>
  bool all(bool victims, const Condition& holds) const {
    for (int rank = 0; rank < trial_.ranks; ++rank) {
      if (trial_.is_victim(rank) == victims && !holds(record_->of(rank))) return false;
    }
    return true;
  }

  void watch() {
    const auto over = [this] { return job_.is_over(); };
    const auto has_ended = [](RankRecord& rank) { return rank.settled || rank.done != 0; };
    const auto survivors_ended = [&] { return over() || all(false, has_ended); };
    const bool strikes = trial_.what.fault != Fault::none && trial_.what.fault != Fault::slow;
    if (!strikes) {
      wait([&] { return survivors_ended() && (over() || all(true, has_ended)); }, kWhole);
      return;
    }
    const auto struck = [&] {
      return all(true, [](RankRecord& rank) { return rank.struck != 0; });
    };
    if (!wait([&] { return over() || struck() || survivors_ended(); }, kStart)) {
      complain_about_time("the fault did not strike");
    }
    for (int rank = 0; rank < trial_.ranks; ++rank) {
      late_before_[static_cast<std::size_t>(rank)] = record_->of(rank).late;
    }
    wait(survivors_ended, allowed() + kPatience);
    if (trial_.what.fault == Fault::late) {
      woken_ = now();
      signal_victims(SIGCONT);
    }
    if (trial_.wakes() || trial_.what.fault == Fault::mismatch) {
      wait([&] { return over() || all(true, has_ended); }, trial_.timeout + kGrace + kPatience);
    }
  }

  void signal_victims(int signal) {
    for (const int rank : trial_.victims) {
      if (const pid_t pid = record_->of(rank).pid; pid > 0) ::kill(pid, signal);
    }
  }

  void release() {
    record_->released = true;
    // Only mpiexec ends a job of which a rank is stopped for ever, and not if it is to go on.
    const bool ends_all = trial_.start != Start::fork && !trial_.recovery;
    const auto survivors_done = [&] {
      return all(false, [](RankRecord& rank) { return rank.done != 0; });
    };
    const Seconds limit = trial_.start == Start::fork ? kAtOnce : kMpiexec;
    if (!ends_all) {
      wait([&] { return job_.is_over() || survivors_done(); }, kAtOnce);
      if (trial_.what.fault == Fault::stop || trial_.what.fault == Fault::kill_stop) {
        signal_victims(SIGKILL);
      }
    }
    ended_ = wait([&] { return job_.is_over(); }, limit);
    if (ended_) return;
    // Open MPI 4.1's mpiexec may hang when some ranks exit while another is in MPI_Finalize().
    verdict_.mpiexec_hung = trial_.start != Start::fork && !Job::has_living_grandchildren();
    if (!verdict_.mpiexec_hung) {
      complain("the job does not end: " + Job::alive());
    }
  }

  // --- Afterwards -------------------------------------------------------------------------------

  const Step* step_of(RankRecord& rank) const {
    const int step = rank.step;
    if (step < 0) return nullptr;
    return &trial_.program[static_cast<std::size_t>(step) % trial_.program.size()];
  }

  /** Whether `other` had left, since it had failed in another communicator than that in which
   * `rank` waited. */
  bool had_left(int other, RankRecord& rank) const {
    if (trial_.splits.empty()) return false;
    RankRecord& left = record_->of(other);
    const Step* const its = step_of(left);
    const Step* const own = step_of(rank);
    const bool same = its != nullptr && own != nullptr && its->group == own->group;
    return !same && left.ended != 0 && left.ended < rank.ended;
  }

  void examine(int number) {
    RankRecord& rank = record_->of(number);
    const End end = rank.end;
    verdict_.results += rank.results;
    if (end == End::wrong) complain(number, std::string("got a wrong result: ") + rank.text.data());
    if (rank.complaint[0] != '\0') complain(number, rank.complaint.data());
    if (rank.refused_late) {
      complain_about_time("rank " + std::to_string(number) + " took long to refuse another call");
    }
    if (trial_.is_victim(number)) {
      examine_victim(number, rank);
    } else {
      examine_survivor(number, rank);
    }
  }

  void expect(int number, RankRecord& rank, bool is_right, const char* what) {
    if (is_right || rank.end == End::wrong) return;
    const std::string_view text = rank.text.data();
    complain(number, std::string("should end with ") + what +
                         ", but: " + std::string(name_of(rank.end)) + (text.empty() ? "" : " ") +
                         std::string(text) + where(rank));
  }

  std::string where(RankRecord& rank) const {
    if (rank.end != End::none) return "";
    const Step* const step = step_of(rank);
    return " in step " + std::to_string(rank.step) +
           (step == nullptr ? "" : " (" + step->describe() + ")");
  }

  void examine_victim(int number, RankRecord& rank) {
    const End end = rank.end;
    switch (trial_.what.fault) {
      case Fault::slow:
        return expect(number, rank, end == End::finished, "the right results");
      case Fault::mismatch:
        return expect(number, rank, end == End::mismatch, "MismatchError");
      case Fault::late:
      case Fault::stall:
      case Fault::busy: {
        const bool meets = rank.step < 0;  // whose ticket may be used up
        expect(number, rank, end == End::lost || (meets && end == End::failed), "PeerLost");
        if (woken_ == 0 || end == End::none) return;
        check_time(number, between(std::max<std::int64_t>(woken_, rank.since), rank.ended),
                   trial_.timeout + kGrace);
        return;
      }
      default:
        return;
    }
  }

  void check_time(int number, Seconds took, Seconds allowed) {
    verdict_.longest_wait = std::max(verdict_.longest_wait, took.count());
    if (took <= allowed + late()) return;
    std::ostringstream text;
    text << "rank " << number << " noticed it after " << std::setprecision(4) << took.count()
         << " s, where " << allowed.count() << " s are allowed";
    complain_about_time(text.str());
  }

  /** How long a survivor may take. Deaths need no deadline, once the ranks have met. */
  Seconds allowed() const {
    const Seconds overdue = trial_.timeout + kGrace;
    if (!trial_.dies() || trial_.what.fault == Fault::kill_stop ||
        trial_.what.phase == Phase::meeting) {
      return overdue;
    }
    return trial_.start == Start::hosts ? std::min(overdue, kHeartbeats) : kAtOnce;
  }

  void examine_survivor(int number, RankRecord& rank) {
    const End end = rank.end;
    const Fault fault = trial_.what.fault;
    if (fault == Fault::none || fault == Fault::slow) {
      return expect(number, rank, end == End::finished, "the right results");
    }
    if (fault == Fault::mismatch) {
      return expect(number, rank, end == End::mismatch, "MismatchError");
    }
    // mpiexec ends the others when one dies.
    const bool ended_from_outside = trial_.start != Start::fork && !trial_.recovery;
    if (end == End::none && ended_from_outside && trial_.dies()) return;
    // A call that has returned needs nobody any more.
    if (end == End::finished && trial_.what.phase == Phase::destruction) return;
    expect(number, rank, end == End::lost, "PeerLost");
    if (end != End::lost) return;
    for (const int name : rank.names()) {
      if (trial_.is_victim(name) || had_left(name, rank)) continue;
      complain(number, std::string("blames an innocent: ") + rank.text.data());
      break;
    }
    if (rank.named_count == 0) complain(number, "blames nobody");
    std::int64_t struck = 0;
    for (const int victim : trial_.victims) {
      const std::int64_t when = record_->of(victim).struck;
      if (when < rank.ended) struck = std::max(struck, when);
    }
    if (struck == 0) return complain(number, std::string("was early: ") + rank.text.data());
    check_time(number, between(std::max<std::int64_t>(struck, rank.since), rank.ended), allowed());
  }

  void examine_status() {
    const bool faultless = trial_.what.fault == Fault::none || trial_.what.fault == Fault::slow;
    for (const auto& [rank, signal] : job_.signals()) {
      const bool started_by_fork = trial_.start == Start::fork;
      if (!started_by_fork || trial_.is_victim(rank) || !ended_) continue;
      complain(rank, "was ended by signal " + std::to_string(signal));
    }
    if (!ended_ || trial_.recovery) return;  // mpiexec --enable-recovery is content with anything
    if ((job_.status() == 0) != faultless) {
      complain("the job's status is " + std::to_string(job_.status()));
    }
  }

  void examine_leftovers() {
    std::string left;
    const bool alone = wait([&] { return (left = ended_ ? Job::alive() : "").empty(); }, kAtOnce);
    if (!alone) complain("processes are left: " + left);
    // Who dies while something is created leaves it to the next start to sweep up.
    const bool sweeps = !sandbox_.has_own_shm() || creates();
    if (sweeps) const Communicator next(0, 1, UniqueId::create());
    if (!ended_) return;
    std::string files;
    const auto look = [&] {
      files.clear();
      for (const std::string& file : shared_files()) {
        if (!before_.contains(file)) files += file + " ";
      }
      return files.empty();
    };
    if (!wait(look, kAtOnce)) complain("left in /dev/shm: " + files);
  }

  bool creates() const {
    if (trial_.what.phase == Phase::meeting || trial_.start != Start::fork) return true;
    if (trial_.what.victims == kMostRanks) return true;
    return std::any_of(trial_.program.begin(), trial_.program.end(), [](const Step& step) {
      return step.op == Op::split || step.op == Op::allocate;
    });
  }

  void conclude() {
    verdict_.is_doubtful = all_about_time_ && late() > kDoubtful;
    std::ostringstream text;
    const auto seconds = [](std::int64_t ns) { return static_cast<double>(ns) * 1e-9; };
    const std::int64_t start = record_->of(0).since;
    for (int number = 0; number < trial_.ranks; ++number) {
      RankRecord& rank = record_->of(number);
      text << "  rank " << number << ": " << rank.results << " results, " << name_of(rank.end)
           << " " << rank.text.data() << std::setprecision(5) << "; since "
           << seconds(rank.since - start) << " s";
      if (rank.struck != 0) text << ", struck at " << seconds(rank.struck - start);
      if (rank.ended != 0) text << ", ended at " << seconds(rank.ended - start);
      text << ", kept from running for " << seconds(rank.late) << " s\n";
    }
    text << "  status " << job_.status() << "\n";
    verdict_.account = text.str();
    std::ifstream output(sandbox_.file(kOutputFile));
    verdict_.output.assign(std::istreambuf_iterator<char>(output), {});
  }

  const Trial& trial_;
  Sandbox sandbox_;
  std::set<std::string> before_;
  std::shared_ptr<Record> record_;
  Job job_;
  std::array<std::int64_t, kMostRanks> late_before_{};
  std::int64_t woken_ = 0;
  bool ended_ = false;
  bool all_about_time_ = true;
  Verdict verdict_;
};

}  // namespace

Verdict run(const Trial& trial, const Program& program) { return Judge(trial, program).run(); }

}  // namespace tutti::test
