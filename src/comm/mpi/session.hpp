// The duplicate communicator that tutti talks over.
#pragma once

#include <mpi.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "base/waiter.hpp"
#include "comm/failures/control_network.hpp"

namespace tutti::mpi {

class UnansweredCalls;

/** MPI moves bytes only while it is called, so waits for it look again and again: at first at once,
 * offering the core, then every 50 us. */
inline constexpr WaitPolicy kMpiWait{.spin = std::chrono::microseconds(200),
                                     .nap = std::chrono::microseconds(50)};
/** So long a wait for messages of other hosts looks on, where its thread is the program's: a core
 * that has slept takes 10 to 50 us to wake up. A thread of the library's own does not, since the
 * program computes. */
inline constexpr std::chrono::milliseconds kSpinOfCaller{1};

/**
 * A private duplicate of a communicator with MPI_ERRORS_RETURN, shared by all channels made from
 * it. It is freed with the last of them, unless it failed, ranks asked each other over it whom they
 * wait for, MPI is finalised already, or this thread may not. In a forked child of the process that
 * made it, a session never calls MPI.
 */
class Session final : public ControlNetwork {
 public:
  /** Initialises MPI if nobody has (see initialise()), and duplicates MPI_COMM_WORLD. Collective.
   * Throws PeerLost naming the ranks that did not come before the deadline, InvalidArgument if MPI
   * is finalised already. */
  static std::shared_ptr<Session> world(std::chrono::milliseconds timeout);
  /** Duplicates `comm`. Collective over it. Throws as world() does, and InvalidArgument if MPI is
   * not initialised or `comm` is null or an inter-communicator. */
  static std::shared_ptr<Session> over(MPI_Comm comm, std::chrono::milliseconds timeout);
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;
  ~Session() override;

  MPI_Comm comm() const { return comm_; }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::unique_ptr<Messenger> messenger(int tag) override;
  /** That of this process. */
  WaitGraph& wait_graph() override;
  /** Whether any thread may call MPI (MPI_THREAD_MULTIPLE). */
  bool any_thread() const { return any_thread_; }
  /** The MPI library's own name and version, one line. */
  static std::string library();
  /** The largest tag that messages of channels may have. */
  int last_tag() const { return roll_call_tag_ - 2; }

  /**
   * For each rank a number that is equal for ranks of one host: those that see the same shared
   * memory and the same processes (and have the same TUTTI_HOST_ID, where that is set). Also tells
   * the WaitGraph who they are. Collective. Each rank sends log2(size) messages, to as many others.
   * Throws PeerLost naming the ranks that did not come before the deadline. To be called as long as
   * the communicator is there of which this is a duplicate.
   */
  std::vector<int> hosts();

  /** The number of a channel's context that this session has not used yet, and its use. */
  int next_context() const { return next_context_; }
  void use_context(int context) { next_context_ = context + 1; }

  /** A rank to which this process cannot connect, which is not tried again. */
  void note_out_of_reach(int rank) { out_of_reach_.insert(rank); }
  bool is_out_of_reach(int rank) const { return out_of_reach_.contains(rank); }

  void note_ended(int rank) override;
  /** Whether that has been noted of it. Open MPI 4.1 may end who sends it a message. */
  bool has_ended(int rank) const;

  /** After the loss of a rank: the communicator is not freed, and MPI is not finalised by tutti. */
  void fail() noexcept override;
  /** After an error that all ranks have survived: the communicator is not freed. */
  void keep() noexcept override { failed_ = true; }
  bool has_failed() const noexcept override { return failed_; }
  /** Whether MPI may be called: it is not finalised, and this is not a forked child of the process
   * that made the session. */
  bool may_call() const noexcept override;
  /** And whether this thread may. */
  bool this_thread_may_call() const noexcept override {
    return may_call() && (any_thread_ || thread_ == std::this_thread::get_id());
  }

 private:
  explicit Session(std::chrono::milliseconds timeout);
  void duplicate(MPI_Comm parent);
  /** Does `action`, which has MPI use `memory`: if it throws, MPI may go on to. */
  template <class Action>
  void with(const std::shared_ptr<const void>& memory, const Action& action);
  /** Polls `requests`, which end once the ranks `awaited` have come, to the deadline of `waiter`;
   * then looks for who is missing. Throws CommunicationError where a call of this process's to
   * another host has had no answer for seconds, and lets the other ranks know that it gives up. */
  void finish(std::span<MPI_Request> requests, std::span<const int> awaited, Waiter& waiter,
              const char* call);
  std::vector<int> all_ranks() const;
  void look_at(UnansweredCalls& calls);
  /** Calls the roll, by which others learn that this rank waits no more: who does not answer. */
  std::vector<int> missing();
  /** `time`: that they had to come in. */
  [[noreturn]] void give_up(const char* call, const std::string& time);

  MPI_Comm parent_ = MPI_COMM_NULL;  ///< the caller's: only for ranks that meet
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::vector<int> ranks_in_world_;
  int roll_call_tag_ = 0;
  bool any_thread_ = false;
  std::chrono::milliseconds timeout_;
  pid_t process_;
  std::thread::id thread_ = std::this_thread::get_id();
  std::atomic<bool> failed_ = false;
  int next_context_ = 0;
  std::set<int> out_of_reach_;
  mutable std::mutex ending_;
  std::set<int> ended_;   // with it
  bool answers_ = false;  ///< over it
};

}  // namespace tutti::mpi
