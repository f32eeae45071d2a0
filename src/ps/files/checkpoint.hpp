// Checkpoints: a folder with a file for each server and a manifest.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps/dense/store.hpp"
#include "ps/table/table.hpp"

namespace tutti::ps {

/** What one server holds. */
struct ServerState {
  std::span<Table> tables;
  DenseStore* dense = nullptr;
  std::int64_t round = 0;  ///< sync: rounds that have been applied
};

/**
 * Writes one server's part, piece by piece, so that the server can serve in between: what it holds
 * is gathered by next(), and written by a thread of its own. All is written into a subfolder of its
 * own; what is cut short leaves the older checkpoint as it was. Throws SystemError, and
 * std::bad_alloc where there is no memory.
 */
class PartWriter {
 public:
  /** `attempt` is alike on all servers, and not that of an earlier attempt, of any job. Throws
   * InvalidArgument for one that is no name. */
  PartWriter(const ServerState& state, const std::string& folder, const std::string& attempt,
             int server, int servers);
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;
  PartWriter(PartWriter&&) noexcept;
  PartWriter& operator=(PartWriter&&) noexcept;
  /** Waits until has_stopped(). */
  ~PartWriter();

  /** Waits until there is room, and gathers the next piece, about a MiB. False: all is on the disk,
   * under the name by which parts_finished() knows it. */
  bool next();
  /** Whether next() would wait. */
  bool is_busy() const;
  /** Gives up. next() is not called any more. */
  void stop();
  /** Whether nothing is written any more. */
  bool has_stopped() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/** Whether all servers have finished their parts: for the last checkpoint, when there is no worker
 * left through whom servers hear of each other. */
bool parts_finished(const std::string& folder, const std::string& attempt, int servers);

/** Once all servers have finished: replaces the manifest by one that names these parts, and removes
 * all others but those of the job's end, at which servers may be already. At any time there is a
 * whole checkpoint, if there was one. Throws SystemError, InvalidArgument for parts that are
 * damaged or of different rounds. */
void publish_checkpoint(const std::string& folder, const std::string& attempt, int servers);

/** Removes what servers have written for an attempt that has failed. Throws InvalidArgument for a
 * manifest that is damaged, SystemError if it cannot be told whether it names the attempt. */
void discard_attempt(const std::string& folder, const std::string& attempt);

/** Makes the folder if it is not there. Throws SystemError unless files can be made in it. */
void require_writable(const std::string& folder);

/** Removes what attempts of an earlier job have left in `folder`. Throws InvalidArgument for a
 * manifest that is damaged, SystemError if it cannot be told whether there is one. */
void discard_attempts(const std::string& folder);

/**
 * Reads what belongs to this server of a checkpoint that any number of servers has written; returns
 * the round. Throws InvalidArgument naming the file for one that is damaged, cut short, or of other
 * tables (name, dim, kind of rule, initial values, seed; learning rates and the like may be
 * others), before anything is changed in `state`; SystemError.
 */
std::int64_t load_checkpoint(const std::string& folder, const ServerState& state, int server,
                             int servers);

}  // namespace tutti::ps
