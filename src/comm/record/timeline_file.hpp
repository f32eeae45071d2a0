// Timelines of communicators: how their ranks come to one file and one clock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/record/clock_offset.hpp"
#include "comm/record/trace.hpp"
#include "tutti/communicator.hpp"

namespace tutti::record {

/** A file that communicators of this process have a timeline in. Safe from several threads. */
class TimelineFile {
 public:
  /** `source` names the path in errors: "TUTTI_TIMELINE". */
  TimelineFile(const std::filesystem::path& path, std::string source);

  /** Collective: the ranks of `communicator` begin a timeline, together with those which have one
   * in this file already. Throws InvalidArgument on all ranks if rank 0 cannot make the file; null
   * where this rank alone cannot write to it, which the log says. */
  std::shared_ptr<Trace> join(Communicator& communicator);
  /** Ends the timelines of all communicators. */
  void close() noexcept;

  const std::filesystem::path& path() const { return path_; }

 private:
  /** What rank 0 tells the others of the file. */
  struct Opening;
  Opening open_first(const Communicator& communicator);

  const std::filesystem::path path_;
  const std::string source_;
  std::mutex mutex_;
  std::string run_;          // whose file it is, once a communicator has joined
  std::int64_t origin_ = 0;  // when it began, on this process' clock
  std::vector<std::weak_ptr<Trace>> traces_;
};

/** The file that new communicators of this process join: a Timeline's, or else that of
 * TUTTI_TIMELINE; null if there is none. */
std::shared_ptr<TimelineFile> current_timeline();
/** Makes `file` the current one. Throws InvalidArgument if another is. */
void set_current_timeline(std::shared_ptr<TimelineFile> file);
/** Ends what that has set. */
void end_current_timeline() noexcept;
/** What must be the same on all ranks of a new communicator: a hash, 0 without a timeline. */
std::int64_t current_timeline_hash();

}  // namespace tutti::record
