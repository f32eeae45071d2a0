// Duplicates communicators, and finds out who shares a host.
#include "comm/mpi/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "base/log.hpp"
#include "base/text.hpp"
#include "base/waiter.hpp"
#include "comm/failures/wait_graph.hpp"
#include "comm/mpi/lifecycle.hpp"
#include "comm/mpi/meeting/interface.hpp"
#include "comm/mpi/meeting/unanswered.hpp"
#include "comm/mpi/messenger.hpp"
#include "comm/place.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

constexpr std::chrono::milliseconds kRollCall{700};  // how long missing ranks are looked for
// How often it is asked whether calls to other hosts are answered, which reads files of /proc; and
// after which time, in which ranks have met as a rule.
constexpr std::chrono::milliseconds kCallsLooked{250};
constexpr std::chrono::milliseconds kFirstLook{1000};

/** Where a rank is, and who. */
struct Whereabouts {
  Place place;
  ProcessNumber process;
};

Place place_of_processor() {
  std::array<char, MPI_MAX_PROCESSOR_NAME> name{};
  int length = 0;
  check(MPI_Get_processor_name(name.data(), &length), "MPI_Get_processor_name");
  return own_place(name.data());
}

/** The ranks of `comm` in MPI_COMM_WORLD, but those of processes that were spawned. */
std::vector<int> ranks_in_world(MPI_Comm comm, int size) {
  MPI_Group members = MPI_GROUP_NULL;
  MPI_Group world = MPI_GROUP_NULL;
  check(MPI_Comm_group(comm, &members), "MPI_Comm_group");
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<int> translated(ranks.size());
  check(MPI_Group_translate_ranks(members, size, ranks.data(), world, translated.data()),
        "MPI_Group_translate_ranks");
  check(MPI_Group_free(&members), "MPI_Group_free");
  check(MPI_Group_free(&world), "MPI_Group_free");
  std::erase(translated, MPI_UNDEFINED);
  return translated;
}

/** Hears who answers over a session. */
class Audience final : private WaitGraph::Asker {
 public:
  explicit Audience(const Session& session) {
    graph_.add(*this, &session, std::chrono::steady_clock::now());
  }
  Audience(const Audience&) = delete;
  Audience& operator=(const Audience&) = delete;
  ~Audience() override { graph_.remove(*this); }

  void ask(std::span<const ProcessNumber> processes) { graph_.ask(*this, processes); }
  /** Takes those of whom it has heard out of `absent`. */
  void strike(std::set<int>& absent) {
    const std::lock_guard lock(mutex_);
    for (const int rank : heard_) absent.erase(rank);
  }

 private:
  RecycledVector<ProcessNumber> hear(const WaitGraph::Heard& heard) override {
    const std::lock_guard lock(mutex_);
    heard_.push_back(heard.rank);
    return {};
  }

  WaitGraph& graph_ = WaitGraph::of_this_process();
  std::mutex mutex_;
  std::vector<int> heard_;
};

/** Whether somebody calls the roll over `comm`, that is, has given up. */
bool roll_is_called(MPI_Comm comm, int tag) {
  int found = 0;
  check(MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
  return found != 0;
}

}  // namespace

Session::Session(std::chrono::milliseconds timeout) : timeout_(timeout), process_(::getpid()) {}

std::shared_ptr<Session> Session::world(std::chrono::milliseconds timeout) {
  initialise(timeout);
  return over(MPI_COMM_WORLD, timeout);
}

std::shared_ptr<Session> Session::over(MPI_Comm comm, std::chrono::milliseconds timeout) {
  refuse_in_forked_child();
  if (!is_initialised()) throw InvalidArgument("comm was given, but MPI is not initialised");
  if (is_finalised()) throw InvalidArgument("comm was given, but MPI is finalised");
  if (comm == MPI_COMM_NULL) throw InvalidArgument("comm is MPI_COMM_NULL");
  int inter = 0;
  check(MPI_Comm_test_inter(comm, &inter), "MPI_Comm_test_inter");
  if (inter != 0) throw InvalidArgument("comm is an inter-communicator");
  std::shared_ptr<Session> session(new Session(timeout));
  session->duplicate(comm);
  return session;
}

void Session::duplicate(MPI_Comm parent) {
  check_interfaces();  // Open MPI waits for ever on wrong ones, with the first message
  parent_ = parent;
  check(MPI_Comm_rank(parent, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(parent, &size_), "MPI_Comm_size");
  int level = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  any_thread_ = level == MPI_THREAD_MULTIPLE;
  roll_call_tag_ = roll_call_tag();
  ranks_in_world_ = ranks_in_world(parent, size_);
  guard_finalisation();
  const auto duplicate = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  with(duplicate, [&] {
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(parent, duplicate.get(), &request), "MPI_Comm_idup");
    Waiter waiter(kMpiWait, timeout_);
    finish(std::span(&request, 1), all_ranks(), waiter, "MPI_Comm_idup");
  });
  comm_ = *duplicate;
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  WaitGraph::of_this_process().add(*this, roll_call_tag_ - 1);
  answers_ = true;
}

Session::~Session() {
  const bool asked = WaitGraph::of_this_process().remove(*this);
  // MPI would give an answer that comes later to the next communicator of the same number.
  if (comm_ == MPI_COMM_NULL || asked || failed_ || !this_thread_may_call()) return;
  const int code = MPI_Comm_free(&comm_);
  if (code != MPI_SUCCESS) log(LogLevel::warn, "MPI_Comm_free: " + describe_error(code));
}

std::unique_ptr<Messenger> Session::messenger(int tag) {
  return std::make_unique<MpiMessenger>(*this, tag);
}

WaitGraph& Session::wait_graph() { return WaitGraph::of_this_process(); }

bool Session::may_call() const noexcept { return process_ == ::getpid() && !is_finalised(); }

void Session::note_ended(int rank) {
  const std::lock_guard lock(ending_);
  ended_.insert(rank);
}

bool Session::has_ended(int rank) const {
  const std::lock_guard lock(ending_);
  return ended_.contains(rank);
}

void Session::fail() noexcept {
  failed_ = true;
  mark_lost(ranks_in_world_);
}

template <class Action>
void Session::with(const std::shared_ptr<const void>& memory, const Action& action) {
  try {
    action();
  } catch (...) {
    leave_to_mpi(memory);
    fail();
    throw;
  }
}

/**
 * Some ranks may be one step ahead of others, when one of them stops between two. Those that have
 * not got the duplicate yet see each other by the roll call, which is over the caller's
 * communicator for their sake; those that have it by the questions over it, which later steps
 * answer, too. This looks for both kinds and answers both.
 */
void Session::finish(std::span<MPI_Request> requests, std::span<const int> awaited, Waiter& waiter,
                     const char* call) {
  const std::vector<int> everybody = all_ranks();
  UnansweredCalls calls;
  for (;;) {
    int done = 0;
    check(
        MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE),
        call);
    if (done != 0) break;
    if (!waiter.pause()) continue;
    if (waiter.waited() >= kFirstLook && waiter.due(kCallsLooked)) look_at(calls);
    if (answers_) {
      WaitGraph::of_this_process().poll(*this, awaited, everybody);
    } else {
      OwnWaits::of_this_process().wait_for(std::array{kSomebody});
    }
    if (waiter.expired()) give_up(call, seconds_text(timeout_));
    if (roll_is_called(parent_, roll_call_tag_)) {
      give_up(call, seconds_text(waiter.waited()) + ", when another rank gave up");
    }
  }
  OwnWaits::of_this_process().forget();
}

void Session::look_at(UnansweredCalls& calls) {
  try {
    calls.look();
  } catch (const CommunicationError&) {
    missing();
    throw;
  }
}

std::vector<int> Session::missing() {
  fail();
  const std::vector<int> everybody = all_ranks();
  Audience audience(*this);
  WaitGraph& graph = WaitGraph::of_this_process();
  if (answers_) audience.ask(graph.numbers_of(*this, everybody));
  return call_roll(parent_, roll_call_tag_, everybody, kRollCall, [&](std::set<int>& absent) {
    if (!answers_) return;
    graph.poll(*this, everybody, everybody);
    audience.strike(absent);
  });
}

void Session::give_up(const char* call, const std::string& time) {
  std::vector<int> lost = missing();
  if (!lost.empty()) throw PeerLost(lost, "did not come within " + time);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) lost.push_back(peer);
  }
  throw PeerLost(lost, "gave up waiting in " + std::string(call));
}

std::vector<int> Session::all_ranks() const {
  std::vector<int> ranks(static_cast<std::size_t>(size_));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string Session::library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  // Open MPI goes on with the package and a date after a comma, MPICH on the next line.
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

/**
 * By doubling: in step k every rank passes on what it knows, of itself and the ranks behind it, to
 * the one 2^k before it, so that all know of all after log2(size) steps. Open MPI's non-blocking
 * MPI_Iallgather would have each rank send to each other one, over a connection of its own. Source:
 * Bruck et al., 1997, as in GroupAgreement::agree().
 */
std::vector<int> Session::hosts() {
  // Of the rank that is so far behind this one.
  const auto known = std::make_shared<std::vector<Whereabouts>>(static_cast<std::size_t>(size_));
  known->front() = {place_of_processor(), OwnWaits::of_this_process().number()};
  with(known, [&] {
    Waiter waiter(kMpiWait, timeout_);
    for (int count = 1; count < size_; count *= 2) {
      const auto bytes = static_cast<int>(static_cast<std::size_t>(std::min(count, size_ - count)) *
                                          sizeof(Whereabouts));
      const std::array peers{(rank_ + count) % size_, (rank_ - count + size_) % size_};
      std::array<MPI_Request, 2> requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
      check(MPI_Irecv(known->data() + count, bytes, MPI_BYTE, peers[0], roll_call_tag_, comm_,
                      &requests[0]),
            "MPI_Irecv");
      check(
          MPI_Isend(known->data(), bytes, MPI_BYTE, peers[1], roll_call_tag_, comm_, &requests[1]),
          "MPI_Isend");
      finish(requests, peers, waiter, "the exchange of where the ranks are");
    }
  });

  std::map<Place, int> lowest;
  std::vector<int> hosts;
  std::vector<ProcessNumber> processes;
  for (int rank = 0; rank < size_; ++rank) {
    const auto& [place, process] =
        (*known)[static_cast<std::size_t>((rank - rank_ + size_) % size_)];
    hosts.push_back(lowest.try_emplace(place, rank).first->second);
    processes.push_back(process);
  }
  const bool leads = hosts[static_cast<std::size_t>(rank_)] == rank_;
  if (lowest.size() > 1 && leads && log_enabled(LogLevel::info)) {
    log(LogLevel::info, "to other hosts by " + describe(chosen_interfaces()));
  }
  WaitGraph::of_this_process().set_processes(*this, std::move(processes), lowest.size() > 1);
  return hosts;
}

}  // namespace tutti::mpi
