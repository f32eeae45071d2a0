// Timelines: what the ranks of a program do, and when, in a file for a viewer.
#pragma once

#include <filesystem>
#include <memory>

#include "tutti/communicator.hpp"

namespace tutti {

/**
 * Writes what the ranks do into a trace that ui.perfetto.dev and chrome://tracing open: each call
 * with its bytes and the way they went, how much of it was waiting for others, and the parts of
 * DistOpt's steps; a group of lanes for each rank, a lane for each stream, all on rank 0's clock.
 * The ranks of all hosts that see one file write to it together, and it is complete at any moment,
 * also after a failure; where a host sees another file of that name, or none, its ranks have one of
 * their own there, on the same clock. docs/observing.md shows how to read it.
 *
 * TUTTI_TIMELINE=FILE does the same for a whole program. A timeline costs a rank less than a
 * microsecond a call, and a thread that writes ten times a second.
 */
class Timeline {
 public:
  /**
   * Of all communicators that this process makes while it exists, instead of TUTTI_TIMELINE. On all
   * their ranks or on none. A communicator's constructor throws InvalidArgument on all ranks if
   * rank 0 cannot make the file. Throws InvalidArgument if there is one already.
   */
  explicit Timeline(const std::filesystem::path& path);
  /**
   * Of `communicator`, its parts that split() makes from now on, and whoever uses it. Collective
   * and blocking. Throws InvalidArgument on all ranks if rank 0 cannot make the file.
   */
  Timeline(const std::filesystem::path& path, Communicator& communicator);
  Timeline(Timeline&&) noexcept;
  Timeline& operator=(Timeline&&) = delete;
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;
  /** close(). */
  ~Timeline();

  /** Writes what there is of this rank, and ends its part. Waits for nobody. */
  void close() noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
