// What the ranks of a trial and its judge show each other, in a file that all of them map.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rig/trial.hpp"

namespace tutti::test {

using Clock = std::chrono::steady_clock;  // the same for all processes of a machine

/** A moment in nanoseconds of the clock; 0: not yet. */
using Moment = std::atomic<std::int64_t>;
std::int64_t now();

/** How the life of a rank ended. */
enum class End : std::int32_t {
  none,      ///< it has not
  finished,  ///< its whole program, with the right results
  lost,      ///< PeerLost
  mismatch,  ///< MismatchError
  failed,    ///< another exception of tutti's
  thrown,    ///< its own exception
  wrong,     ///< a result was wrong
};
std::string_view name_of(End end);

struct RankRecord {
  std::atomic<pid_t> pid;
  std::atomic<std::int32_t> step;  ///< that it is in, or else:
  static constexpr std::int32_t kMeeting = -1;
  static constexpr std::int32_t kPreparing = -2;  ///< splits and memory for the program
  static constexpr std::int32_t kLeaving = -3;
  Moment since;                       ///< when it came to that
  Moment struck;                      ///< when its fault did
  std::atomic<std::int64_t> late;     ///< see Delays
  std::atomic<std::int64_t> results;  ///< that were right
  Moment ended;
  std::atomic<End> end;
  std::int32_t named_count;  ///< of PeerLost
  std::array<std::int32_t, kMostRanks> named;
  std::array<char, 2000> text;
  std::atomic<bool> settled;        ///< it waits to be released
  std::array<char, 400> complaint;  ///< what was wrong after the end
  std::atomic<bool> refused_late;   ///< a call after the end
  Moment done;                      ///< it is about to return from main()

  void note_end(End how, std::string_view what, const std::vector<int>& ranks = {});
  void complain(std::string_view what);
  std::vector<int> names() const { return {named.data(), named.data() + named_count}; }
};

struct Record {
  std::atomic<bool> released;  ///< the ranks may look at their memory once more, and end
  std::array<RankRecord, kMostRanks> ranks;

  RankRecord& of(int rank) { return ranks[static_cast<std::size_t>(rank)]; }
};

/** Maps the file, which exists and is empty or a record; lasts as long as the pointer. */
std::shared_ptr<Record> map_record(const std::string& path);

}  // namespace tutti::test
