// Runs the program, and lets the others and the memory be looked at after a failure.
#include "rig/rank.hpp"

#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "rig/oracle.hpp"
#include "rig/saboteur.hpp"
#include "rig/steps.hpp"
#include "support/world.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

using namespace std::chrono_literals;

constexpr unsigned char kReused = 0xA5;

class Life {
 public:
  Life(const Trial& trial, int rank, Record& record)
      : trial_(trial), rank_(rank), record_(record), own_(record.of(rank)) {
    own_.pid = ::getpid();
  }

  int run(const std::optional<UniqueId>& ticket) {
    try {
      meet(ticket);
      work();
      saboteur_.before(Phase::destruction);
      come_to(RankRecord::kLeaving);
      leave();
      own_.note_end(End::finished, "");
    } catch (const EarlyLeave& error) {
      leave();
      own_.note_end(End::finished, error.what());
    } catch (const Sabotage& error) {
      leave();
      own_.note_end(End::thrown, error.what());
    } catch (const WrongResult& error) {
      own_.note_end(End::wrong, in_step() + error.what());
    } catch (const PeerLost& error) {
      own_.note_end(End::lost, in_step() + error.what(), in_world(error.ranks()));
      settle<PeerLost>();
    } catch (const MismatchError& error) {
      own_.note_end(End::mismatch, in_step() + error.what());
      settle<CommunicationError>();
    } catch (const std::exception& error) {
      own_.note_end(End::failed, in_step() + error.what());
    }
    const bool is_well = own_.end == End::finished;
    if (!is_well) wait_for_release();
    own_.done = now();
    return is_well ? 0 : 1;
  }

 private:
  void come_to(std::int32_t step) {
    own_.step = step;
    own_.since = now();
  }

  std::string in_step() const {
    const int step = own_.step;
    if (step < 0) {
      return step == RankRecord::kMeeting ? "meeting: " : "preparing: ";
    }
    const auto at = static_cast<std::size_t>(step) % trial_.program.size();
    return "step " + std::to_string(step) + " (" + trial_.program[at].describe() + "): ";
  }

  /** Ranks as the communicator in use has them, as all ranks are numbered. */
  std::vector<int> in_world(const std::vector<int>& ranks) const {
    std::vector<int> result;
    for (const int rank : ranks) {
      const auto at = static_cast<std::size_t>(rank);
      result.push_back(at < members_.size() ? members_[at] : rank);
    }
    return result;
  }

  void meet(const std::optional<UniqueId>& ticket) {
    // MPI's own start may take longer than the deadline of the trial.
    if (!ticket && !trial_.initialises_mpi) Communicator(short_timeout(kLongerThanATrial));
    come_to(RankRecord::kMeeting);
    saboteur_.before(Phase::meeting);
    const CommOptions options = short_timeout(trial_.timeout);
    world_ = ticket ? std::make_shared<Communicator>(rank_, trial_.ranks, *ticket, options)
                    : std::make_shared<Communicator>(options);
    come_to(RankRecord::kPreparing);
    steps_.emplace(trial_, world_, members_);
    steps_->before_call = [this] { saboteur_.before_call(); };
  }

  void work() {
    const auto end = trial_.ends() ? static_cast<std::uint64_t>(trial_.steps) : ~std::uint64_t{0};
    for (std::uint64_t number = 0; number < end; ++number) {
      const Step& step = trial_.program[number % trial_.program.size()];
      saboteur_.before(Phase::step, number);
      come_to(static_cast<std::int32_t>(number));
      steps_->interrupt_training(saboteur_.throws(number));
      steps_->run(saboteur_.errs(number) ? mistaken(step, trial_.seed, trial_.ranks) : step,
                  number);
      own_.results = steps_->results();
    }
  }

  void leave() {
    if (steps_) steps_->leave();
    world_.reset();
  }

  /** After a failure: the communicator refuses what comes then, and the memory is this rank's own
   * again, whatever the victims still do. */
  template <class Refusal>
  void settle() {
    // A part that has failed is not the whole.
    const bool all = members_.size() == static_cast<std::size_t>(trial_.ranks);
    if (world_ && trial_.splits.empty() && all && own_.step >= 0) {
      const auto start = Clock::now();
      try {
        world_->barrier();
        own_.complain("a call after the failure succeeded");
      } catch (const Refusal&) {
        if (Clock::now() > start + 500ms + std::chrono::nanoseconds(own_.late)) {
          own_.refused_late = true;
        }
      } catch (const std::exception& error) {
        own_.complain(std::string("a call after the failure threw ") + error.what());
      }
    }
    if (!trial_.keeps) leave();
    if (trial_.is_victim(rank_) || !steps_) return;
    steps_->memory().fill(kReused);
    wait_for_release();
    if (const std::string what = steps_->memory().changed(kReused); !what.empty()) {
      own_.complain(what);
    }
  }

  void wait_for_release() {
    own_.settled = true;
    for (const auto end = Clock::now() + kLongerThanATrial;
         !record_.released && Clock::now() < end;) {
      std::this_thread::sleep_for(1ms);
    }
  }

  const Trial& trial_;
  int rank_;
  Record& record_;
  RankRecord& own_;
  std::vector<int> members_;  // of the communicator in use
  std::shared_ptr<Communicator> world_;
  std::optional<Steps> steps_;
  Delays delays_{own_};
  Saboteur saboteur_{trial_, rank_, record_};
};

/** MPI as a user of tutti starts and ends it. */
class UsersMpi {
 public:
  UsersMpi() {
    int provided = 0;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
  }
  UsersMpi(const UsersMpi&) = delete;
  UsersMpi& operator=(const UsersMpi&) = delete;
  ~UsersMpi() {
    // MPI_Finalize() would wait for those who are lost, and MPI_Abort() of several ranks at the
    // same time may hang mpiexec.
    if (!is_well) std::_Exit(1);
    MPI_Finalize();
  }

  bool is_well = false;
};

}  // namespace

int live(const Trial& trial, int rank, Record& record, const std::optional<UniqueId>& ticket) {
  if (!trial.hosts.empty()) {
    const int host = parse_hosts(trial.hosts, trial.ranks)[static_cast<std::size_t>(rank)];
    ::setenv("TUTTI_HOST_ID", std::to_string(host).c_str(), 1);
  }
  std::optional<UsersMpi> users;
  if (trial.initialises_mpi) users.emplace();
  const int code = Life(trial, rank, record).run(ticket);
  if (users) users->is_well = code == 0;
  return code;
}

}  // namespace tutti::test
