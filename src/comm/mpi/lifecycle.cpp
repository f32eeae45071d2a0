// MPI's start and end in this process.
#include "comm/mpi/lifecycle.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/mpi/job.hpp"
#include "comm/mpi/meeting/interface.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::mpi {
namespace {

// Before MPI_Finalize. Whoever was declared lost may wake up, and has to notice first.
constexpr std::chrono::milliseconds kFinaliseGrace{5000};

// After MPI_Init, for those whose time is up a little later to see that this rank had come.
constexpr std::chrono::milliseconds kInitGrace{700};

/** A call of MPI_Init_thread on a thread of its own, shared by that thread and who waits for it. */
struct Initialisation {
  std::mutex mutex;
  std::condition_variable ended;
  std::optional<int> code;

  void run() {
    ::prctl(PR_SET_NAME, kInitialisingThread);  // for the other ranks of this host to see
    int provided = 0;
    const int result = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    const std::lock_guard lock(mutex);
    code = result;
    ended.notify_all();
  }
  /** Whether it has ended, at the latest after `limit`. */
  bool look(Waiter::Duration limit) {
    std::unique_lock lock(mutex);
    return ended.wait_for(lock, limit, [this] { return code.has_value(); });
  }
};

/** What libevent waits by, in Open MPI. */
constexpr const char* kEvents = "OMPI_MCA_opal_event_include";

/** What this process owes to MPI, of which there is one in a process. */
struct Process {
  std::mutex initialising;
  std::atomic<pid_t> initialised_by = 0;           // a forked child inherits it, but not the duty
  std::atomic<pid_t> used_by = 0;                  // likewise, but not the connections
  std::shared_ptr<Initialisation> initialisation;  // with `initialising`
  bool guarded = false;                            // likewise
  bool has_set_events = false;                     // likewise: kEvents is to be unset
  std::mutex leaving;
  std::atomic<bool> lost = false;
  std::set<int> companions;  // of MPI_COMM_WORLD, in sessions that lost a rank; with `leaving`
  std::vector<std::shared_ptr<const void>> left_to_mpi;
};

Process& process() {
  static Process& never_destroyed = *new Process;
  return never_destroyed;
}

void finalise_at_exit() {
  const Process& owner = process();
  if (owner.initialised_by != ::getpid() || owner.lost || is_finalised()) return;
  MPI_Finalize();
}

/** While it exists an error on `comm`, which is the caller's, is returned: its own error handler
 * would end the process, as a rule. */
class ErrorsReturn {
 public:
  explicit ErrorsReturn(MPI_Comm comm) : comm_(comm) {
    check(MPI_Comm_get_errhandler(comm, &callers_), "MPI_Comm_get_errhandler");
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  }
  ErrorsReturn(const ErrorsReturn&) = delete;
  ErrorsReturn& operator=(const ErrorsReturn&) = delete;
  ~ErrorsReturn() {
    MPI_Comm_set_errhandler(comm_, callers_);
    MPI_Errhandler_free(&callers_);
  }

 private:
  MPI_Comm comm_;
  MPI_Errhandler callers_ = MPI_ERRHANDLER_NULL;
};

/**
 * Before MPI_Init. When a message to a process that has died fails, Open MPI 4.1 closes the socket
 * and adds an event for it all the same. libevent's poll(), its choice, takes that, and if another
 * message to the same process follows soon, goes round in a list without end. epoll refuses it.
 * Whether nothing was set there.
 */
bool have_events_of_closed_sockets_refused() {
  if (std::getenv(kEvents) != nullptr) return false;
  return ::setenv(kEvents, "epoll,poll", 0) == 0;
}

[[noreturn]] void lose_those_who_did_not_come(std::chrono::milliseconds timeout) {
  const LocalRanks ranks = local_ranks();
  std::this_thread::sleep_for(kInitGrace);
  const std::string reason = "did not come to MPI_Init within " + seconds_text(timeout);
  if (!ranks.missing.empty()) throw PeerLost(ranks.missing, reason);
  std::string text = "MPI_Init has not ended within " + seconds_text(timeout);
  if (ranks.come > 0) {
    text += "; of this host " + std::to_string(ranks.come) +
            " ranks have come, and none is seen that has not";
  }
  throw CommunicationError(text);
}

/** What MPI_Finalize does first: it deletes the attributes of MPI_COMM_SELF. */
int before_finalising(MPI_Comm /*self*/, int /*key*/, void* /*value*/, void* /*state*/) {
  Process& owner = process();
  std::vector<int> awaited;
  {
    const std::lock_guard lock(owner.leaving);
    awaited.assign(owner.companions.begin(), owner.companions.end());
  }
  if (awaited.empty()) return MPI_SUCCESS;
  try {
    const std::vector<int> absent =
        call_roll(MPI_COMM_WORLD, roll_call_tag() - 1, awaited, kFinaliseGrace);
    if (absent.empty()) return MPI_SUCCESS;
    log(LogLevel::error,
        PeerLost(absent, "did not come to MPI_Finalize within " + seconds_text(kFinaliseGrace) +
                             ", so this process ends")
            .what());
  } catch (const std::exception& error) {
    log(LogLevel::error, std::string("MPI_Finalize after the loss of a rank: ") + error.what());
  }
  // Not MPI_Abort: where two ranks call it at once, Open MPI's mpiexec may hang.
  std::fflush(nullptr);
  std::_Exit(EXIT_FAILURE);
}

}  // namespace

bool is_initialised() {
  int yes = 0;
  MPI_Initialized(&yes);
  return yes != 0;
}

bool is_finalised() {
  int yes = 0;
  MPI_Finalized(&yes);
  return yes != 0;
}

void refuse_in_forked_child() {
  const pid_t user = process().used_by;
  if (user == 0 || user == ::getpid()) return;
  throw InvalidArgument(
      "MPI belongs to the process that this one was forked from, and only that one may use it: "
      "forked processes meet with a ticket (UniqueId), or are started by another program, as "
      "multiprocessing's \"spawn\" does");
}

void initialise(std::chrono::milliseconds timeout) {
  Process& owner = process();
  refuse_in_forked_child();
  const std::lock_guard lock(owner.initialising);
  if (is_finalised()) {
    throw InvalidArgument("MPI was finalised before this communicator was made");
  }
  if (owner.initialised_by != 0) return;
  if (!owner.initialisation) {
    if (is_initialised()) return;
    hand_interfaces_to_mpi();
    owner.has_set_events = have_events_of_closed_sockets_refused();
    owner.initialisation = std::make_shared<Initialisation>();
    std::thread([start = owner.initialisation] { start->run(); }).detach();
  }
  const auto start = owner.initialisation;  // by now perhaps that of an earlier call, which gave up
  const WaitPolicy policy{.nap = InterruptCheck::kInterval};
  bool has_ended = false;
  for (Waiter waiter(policy, timeout); !has_ended;) {
    if (waiter.expired()) lose_those_who_did_not_come(timeout);
    waiter.nap([&](Waiter::Duration limit) { has_ended = start->look(limit); });
  }
  // It is for this process alone, not for programs that it starts.
  if (std::exchange(owner.has_set_events, false)) ::unsetenv(kEvents);
  check(*start->code, "MPI_Init_thread");
  owner.used_by = owner.initialised_by = ::getpid();
  if (std::atexit(finalise_at_exit) != 0) {
    log(LogLevel::warn, "MPI will not be finalised: the process has too many exit handlers");
  }
}

void guard_finalisation() {
  Process& owner = process();
  owner.used_by = ::getpid();
  const std::lock_guard lock(owner.initialising);
  if (owner.guarded) return;
  int key = MPI_KEYVAL_INVALID;
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, before_finalising, &key, nullptr),
        "MPI_Comm_create_keyval");
  check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
  check(MPI_Comm_free_keyval(&key), "MPI_Comm_free_keyval");  // the attribute stays
  owner.guarded = true;
}

void mark_lost(std::span<const int> ranks) noexcept {
  Process& owner = process();
  try {
    {
      const std::lock_guard lock(owner.leaving);
      owner.companions.insert(ranks.begin(), ranks.end());
    }
    if (owner.lost.exchange(true) || owner.initialised_by == ::getpid()) return;
    log(LogLevel::warn,
        "a rank was lost, and the program initialised MPI: end it with std::_Exit(1), in Python "
        "os._exit(1), and mpiexec ends the job. MPI_Finalize ends the process unless all ranks "
        "come to it within " +
            seconds_text(kFinaliseGrace));
  } catch (const std::exception& error) {
    owner.lost = true;
    log(LogLevel::warn, std::string_view(error.what()));
  }
}

int roll_call_tag() {
  int* upper_bound = nullptr;
  int known = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&upper_bound), &known),
        "MPI_Comm_get_attr");
  return known != 0 ? *upper_bound : 32767;  // the least that the standard allows
}

std::vector<int> call_roll(MPI_Comm comm, int tag, std::span<const int> awaited,
                           std::chrono::milliseconds timeout,
                           const std::function<void(std::set<int>& absent)>& meanwhile) {
  const ErrorsReturn errors_return(comm);
  int rank = 0;
  int size = 0;
  check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag, comm, &request), "MPI_Isend");
    check(MPI_Request_free(&request), "MPI_Request_free");  // it has no memory to look after
  }
  std::set<int> absent(awaited.begin(), awaited.end());
  absent.erase(rank);
  const WaitPolicy policy{.nap = std::chrono::milliseconds(1), .interruptible = false};
  for (Waiter waiter(policy, timeout); !absent.empty() && !waiter.expired();) {
    int found = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &found, &status), "MPI_Iprobe");
    if (found == 0) {
      if (meanwhile) meanwhile(absent);
      waiter.pause();
      continue;
    }
    const int peer = status.MPI_SOURCE;
    check(MPI_Recv(nullptr, 0, MPI_BYTE, peer, tag, comm, MPI_STATUS_IGNORE), "MPI_Recv");
    absent.erase(peer);
  }
  return {absent.begin(), absent.end()};
}

void survive_lost_connections() noexcept {
  struct sigaction present {};
  if (::sigaction(SIGPIPE, nullptr, &present) != 0) return;
  const bool has_handler = (present.sa_flags & SA_SIGINFO) != 0 || present.sa_handler != SIG_DFL;
  if (!has_handler) ::signal(SIGPIPE, SIG_IGN);
}

void leave_to_mpi(std::shared_ptr<const void> memory) noexcept {
  Process& keeper = process();
  try {
    const std::lock_guard lock(keeper.leaving);
    keeper.left_to_mpi.push_back(std::move(memory));
  } catch (const std::exception& error) {
    log(LogLevel::warn, std::string_view(error.what()));
  }
}

std::string describe_error(int code) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) {
    return "error " + std::to_string(code);
  }
  return {text.data(), static_cast<std::size_t>(length)};
}

void check(int code, const char* call) {
  if (code != MPI_SUCCESS) throw Error(std::string(call) + ": " + describe_error(code));
}

}  // namespace tutti::mpi
