// Initialises and finalises MPI where nobody else does, and duplicates communicators.
#include "communicator/mpi/session.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <mutex>
#include <numeric>
#include <string_view>
#include <thread>
#include <utility>

#include "communicator/deadline.hpp"
#include "communicator/environment.hpp"
#include "communicator/log.hpp"
#include "communicator/mpi/patience.hpp"
#include "communicator/text.hpp"
#include "tutti/error.hpp"
#include "tutti/interrupt.hpp"

namespace tutti::mpi {
namespace {

constexpr std::chrono::milliseconds kRollCall{1000};  // how long missing ranks are looked for

/** What this process owes to MPI, of which there is one in a process. */
struct Process {
  std::mutex initialising;
  std::atomic<pid_t> initialised_by = 0;  // a forked child inherits it, but not the duty
  std::atomic<bool> failed = false;
  std::mutex leaving;
  std::vector<std::shared_ptr<const void>> left_to_mpi;
};

Process& process() {
  static Process& never_destroyed = *new Process;
  return never_destroyed;
}

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

void finalise_at_exit() {
  const Process& owner = process();
  if (owner.initialised_by != ::getpid() || owner.failed || is_finalised()) return;
  MPI_Finalize();
}

void initialise() {
  Process& owner = process();
  const std::lock_guard lock(owner.initialising);
  if (is_finalised()) {
    throw InvalidArgument("MPI was finalised before this communicator was made");
  }
  if (is_initialised()) return;
  int provided = 0;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  owner.initialised_by = ::getpid();
  if (std::atexit(finalise_at_exit) != 0) {
    log(LogLevel::warn, "MPI will not be finalised: the process has too many exit handlers");
  }
}

/** Whether somebody calls the roll over `comm`, that is, has given up. */
bool roll_is_called(MPI_Comm comm, int tag) {
  int found = 0;
  check(MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &found, MPI_STATUS_IGNORE), "MPI_Iprobe");
  return found != 0;
}

/** The ranks of `comm` that do not answer to an empty message within kRollCall. All ranks that
 * wait for the others send one to everybody, so nobody has to answer. */
std::vector<int> call_roll(MPI_Comm comm, int tag, int rank, int size) {
  std::vector<bool> present(static_cast<std::size_t>(size), false);
  present[static_cast<std::size_t>(rank)] = true;
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag, comm, &request), "MPI_Isend");
    check(MPI_Request_free(&request), "MPI_Request_free");  // it has no memory to look after
  }
  int missing = size - 1;
  for (Deadline deadline(kRollCall); missing > 0 && !deadline.expired();) {
    int found = 0;
    MPI_Status status;
    check(MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &found, &status), "MPI_Iprobe");
    if (found == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    const int peer = status.MPI_SOURCE;
    check(MPI_Recv(nullptr, 0, MPI_BYTE, peer, tag, comm, MPI_STATUS_IGNORE), "MPI_Recv");
    if (!present[static_cast<std::size_t>(peer)]) --missing;
    present[static_cast<std::size_t>(peer)] = true;
  }
  std::vector<int> absent;
  for (int peer = 0; peer < size; ++peer) {
    if (!present[static_cast<std::size_t>(peer)]) absent.push_back(peer);
  }
  return absent;
}

}  // namespace

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

Session::Session(std::chrono::milliseconds timeout) : timeout_(timeout), process_(::getpid()) {}

std::shared_ptr<Session> Session::world(std::chrono::milliseconds timeout) {
  initialise();
  return over(MPI_COMM_WORLD, timeout);
}

std::shared_ptr<Session> Session::over(MPI_Comm comm, std::chrono::milliseconds timeout) {
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
  check(MPI_Comm_rank(parent, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(parent, &size_), "MPI_Comm_size");
  int level = MPI_THREAD_SINGLE;
  check(MPI_Query_thread(&level), "MPI_Query_thread");
  any_thread_ = level == MPI_THREAD_MULTIPLE;
  int* upper_bound = nullptr;
  int known = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&upper_bound), &known),
        "MPI_Comm_get_attr");
  roll_call_tag_ = known != 0 ? *upper_bound : 32767;  // the least that the standard allows

  const auto duplicate = std::make_shared<MPI_Comm>(MPI_COMM_NULL);
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Comm_idup(parent, duplicate.get(), &request), "MPI_Comm_idup");
  finish(request, parent, "MPI_Comm_idup", duplicate);
  comm_ = *duplicate;
  check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
}

Session::~Session() {
  if (comm_ == MPI_COMM_NULL || failed_ || !may_call()) return;
  const int code = MPI_Comm_free(&comm_);
  if (code != MPI_SUCCESS) log(LogLevel::warn, "MPI_Comm_free: " + describe_error(code));
}

bool Session::may_call() const noexcept { return process_ == ::getpid() && !is_finalised(); }

void Session::leave_to_mpi(std::shared_ptr<const void> memory) noexcept {
  Process& keeper = process();
  try {
    const std::lock_guard lock(keeper.leaving);
    keeper.left_to_mpi.push_back(std::move(memory));
  } catch (const std::exception& error) {
    log(LogLevel::warn, std::string_view(error.what()));
  }
}

void Session::fail() noexcept {
  failed_ = true;
  process().failed = true;
}

void Session::finish(MPI_Request request, MPI_Comm comm, const char* call,
                     const std::shared_ptr<const void>& memory) {
  Patience patience;
  for (Deadline deadline(timeout_);;) {
    int done = 0;
    check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), call);
    if (done != 0) return;
    if (!patience.rest()) continue;
    try {
      InterruptCheck::poll();
      if (deadline.expired() || roll_is_called(comm, roll_call_tag_)) give_up(comm, call);
    } catch (...) {  // MPI still uses the memory
      leave_to_mpi(memory);
      fail();
      throw;
    }
  }
}

void Session::give_up(MPI_Comm comm, const char* call) {
  fail();
  std::vector<int> lost = call_roll(comm, roll_call_tag_, rank_, size_);
  if (!lost.empty()) throw PeerLost(lost, "did not come within " + seconds_text(timeout_));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) lost.push_back(peer);
  }
  throw PeerLost(lost, "gave up waiting in " + std::string(call));
}

std::string Session::library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  check(MPI_Get_library_version(text.data(), &length), "MPI_Get_library_version");
  const std::string_view all(text.data(), static_cast<std::size_t>(length));
  // Open MPI goes on with the package and a date after a comma, MPICH on the next line.
  return std::string(all.substr(0, all.find_first_of(",\n")));
}

std::vector<int> Session::hosts() {
  // MPI_Comm_split_type blocks, so all ranks enter it together.
  MPI_Request request = MPI_REQUEST_NULL;
  check(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
  finish(request, comm_, "MPI_Ibarrier", nullptr);
  MPI_Comm node = MPI_COMM_NULL;
  check(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
        "MPI_Comm_split_type");

  using Place = std::array<std::uint64_t, 2>;  // the node's lowest rank, hash of TUTTI_HOST_ID or 0
  const auto places = std::make_shared<std::vector<Place>>(static_cast<std::size_t>(size_) + 1);
  Place& own = places->back();
  const auto name = environment("TUTTI_HOST_ID");
  own = {static_cast<std::uint64_t>(rank_),
         name ? std::max<std::uint64_t>(1, hash_text(*name)) : 0};
  check(MPI_Iallreduce(MPI_IN_PLACE, own.data(), 1, MPI_UINT64_T, MPI_MIN, node, &request),
        "MPI_Iallreduce");
  finish(request, comm_, "MPI_Iallreduce", places);
  check(MPI_Comm_free(&node), "MPI_Comm_free");
  check(MPI_Iallgather(own.data(), sizeof(Place), MPI_BYTE, places->data(), sizeof(Place), MPI_BYTE,
                       comm_, &request),
        "MPI_Iallgather");
  finish(request, comm_, "MPI_Iallgather", places);

  std::map<Place, int> lowest;
  std::vector<int> hosts;
  for (int rank = 0; rank < size_; ++rank) {
    const Place& place = (*places)[static_cast<std::size_t>(rank)];
    hosts.push_back(lowest.try_emplace(place, rank).first->second);
  }
  return hosts;
}

}  // namespace tutti::mpi
