// How a server takes part in checkpoints: when they are due, its own part, and what became of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <future>
#include <optional>
#include <string>
#include <vector>

#include "ps/failure.hpp"
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
 * A worker asks all servers for their parts, and server 0 for the rest when these are there: again
 * and again, until each has been done. Nothing here but save_at_end() waits for the disk. Not
 * thread-safe.
 */
class Saver {
 public:
  /** `state` gives what is to be written. */
  Saver(SavePlan plan, std::function<ServerState()> state, int server, int servers, int workers);

  /** RequestKind::save: begins it unless it has been begun. Outcome::not_yet while it is written,
   * Outcome::not_saved with what has failed, which is logged. */
  Answer save(const Request& request);
  /** RequestKind::finish_save, likewise: with kDiscard what has been written is removed. */
  Answer publish(const Request& request);

  /** Whether the server is to stay at the round that it is at. */
  bool is_saving() const { return running_ && !running_->is_unwanted; }
  /** How soon go_on() is to be called again, at most. */
  std::chrono::nanoseconds idle_limit() const;
  /** Gathers a piece if there is room for it; not as often if requests come all the time. */
  void go_on(bool requests_come);
  /** The worker is gone: nobody would publish what it has asked for. */
  void forget(int worker);

  /** Whether it is time to ask a worker for a checkpoint; once each time. By rule that is the
   * lowest worker: another does it if that one has ended no step for as long again. */
  bool take_due(bool is_lowest);

  /** With all workers gone: each server writes its part, server 0 waits for those of others.
   * Blocks. Throws SystemError, DeadlineExceeded, and what an InterruptCheck throws. */
  void save_at_end(std::chrono::milliseconds timeout);

 private:
  using Clock = std::chrono::steady_clock;
  /** Which checkpoint a request is about. */
  struct Id {
    int worker = -1;
    std::int64_t number = -1;  ///< the worker's saves before
    bool operator==(const Id&) const = default;
  };
  static Id id_of(const Request& request) { return {request.worker, request.header.round}; }

  struct Running {
    Id id;
    std::string folder;
    PartWriter writer;
    Clock::time_point next_piece{};  ///< if requests come all the time
    bool is_unwanted = false;
  };
  struct Publication {
    Id id;
    std::string folder;
    bool discards = false;
    std::future<void> result;
  };
  /** The last checkpoint of a worker of which this server's part has been done. */
  struct Done {
    std::int64_t number = -1;
    Answer answer{};
  };

  /** The last one of a worker that has been published or removed: it may ask after others have. */
  struct Published {
    std::int64_t number = -1;
    bool discards = false;
    Answer answer{};
  };

  void begin(const Request& request);
  void end(const Id& id, Answer answer);
  /** Answers, within a handler, with what it handles. */
  Answer failed(const std::string& folder) const;
  Answer failed(const std::string& folder, const Failure& failure) const;
  bool is_publishing() const;
  /** Keeps the answer of a publication that has ended for the worker that asks. */
  void take_published();
  /** Alike on all servers, since the worker and its count of saves are. */
  std::string attempt_of(const Request& request) const;
  std::string attempt_at_end() const;
  /** The folder that a request names. */
  std::string folder_of(const Request& request) const;

  SavePlan plan_;
  std::function<ServerState()> state_;
  int server_;
  int servers_;
  std::optional<Running> running_;
  std::optional<Publication> publication_;
  std::vector<Done> done_;            // of each worker
  std::vector<Published> published_;  // of each worker
  Clock::time_point due_;
};

}  // namespace tutti::ps
