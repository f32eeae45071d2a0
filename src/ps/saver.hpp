// How a server takes part in checkpoints: when they are due, its own part, and what became of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ps/files/checkpoint.hpp"
#include "ps/link/links.hpp"
#include "ps/modes/stores.hpp"

namespace tutti::ps {

/** When and where a server saves of its own accord. */
struct SavePlan {
  std::string folder;             ///< empty: nowhere
  std::chrono::seconds every{0};  ///< 0: not during the training
  bool at_end = false;
  std::uint64_t job = 0;  ///< alike on all servers, and no other job's
};

/**
 * A worker asks all servers for their parts, and server 0 for the rest when these are there. Each
 * part is written piece by piece, so that the server serves in between. Not thread-safe.
 */
class Saver {
 public:
  /** `state` gives what is to be written. */
  Saver(SavePlan plan, std::function<ServerState()> state, int server, int servers, int workers);

  /** Begins what RequestKind::save asks for, if that has not been begun. */
  void begin(const Request& request);
  /** What became of it; nothing: it is being written. */
  std::optional<Answer> result(const Request& request) const;
  /** RequestKind::finish_save. */
  Answer publish(const Request& request) const;

  bool is_saving() const { return running_.has_value(); }
  /** Whether go_on() has nothing to do yet. */
  bool waits_for_disk() const { return running_ && running_->writer.is_busy(); }
  /** Writes a piece, without waiting for the disk. What fails is logged. */
  void go_on();
  /** The worker is gone: nobody would publish what it has asked for. */
  void forget(int worker);

  /** Whether it is time to ask a worker for a checkpoint; once each time. */
  bool take_due();
  /** Adds what became of this worker's saves. */
  void report(int worker, RoundReply& reply) const;

  /** With all workers gone: each server writes its part, server 0 waits for those of others.
   * Blocks. Throws SystemError, DeadlineExceeded. */
  void save_at_end(std::chrono::milliseconds timeout);

 private:
  using Clock = std::chrono::steady_clock;
  struct Running {
    int worker;
    std::string folder;
    PartWriter writer;
  };
  struct Done {
    std::int64_t saves = 0;
    Answer last{};
  };
  Done& done(int worker) { return done_[static_cast<std::size_t>(worker)]; }
  const Done& done(int worker) const { return done_[static_cast<std::size_t>(worker)]; }
  /** Alike on all servers, since the worker and its count of saves are. */
  std::string attempt_of(const Request& request) const;
  std::string attempt_at_end() const;
  /** The folder that a request names. */
  std::string folder_of(const Request& request) const;
  void fail(int worker, const std::string& folder, const std::string& reason);

  SavePlan plan_;
  std::function<ServerState()> state_;
  int server_;
  int servers_;
  std::optional<Running> running_;
  std::vector<Done> done_;  // of each worker
  Clock::time_point due_;
};

}  // namespace tutti::ps
