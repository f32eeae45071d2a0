// What the flight recorders of the ranks say together, for people and for programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/record/recorder.hpp"
#include "comm/record/ring.hpp"

namespace tutti::record {

/** A call that was noted. Times are nanoseconds of CLOCK_MONOTONIC, 0 for what was not yet. */
struct NotedCall {
  std::uint64_t number = 0;
  std::uint64_t sequence = 0;
  Operation operation = Operation::barrier;
  DType dtype = DType::u8;
  ReduceKind reduction = ReduceKind::sum;
  std::int32_t root = -1;
  std::int64_t count = 0;
  CallState state = CallState::none;
  std::int64_t begun = 0;
  std::int64_t ended = 0;
  std::int64_t waited = 0;

  /** "all_reduce(f32, count 10, sum)". */
  std::string describe() const;
  bool operator==(const NotedCall&) const = default;
};

/** The calls of `ring`, oldest first; the ring may be written meanwhile. */
std::vector<NotedCall> read_calls(const Ring& ring);

/** What is known of one rank. */
struct RankFlight {
  int rank = 0;  ///< as the user knows it
  std::int64_t process = 0;
  std::string condition;  ///< "its process has ended", for example; empty if it goes on
  std::vector<NotedCall> calls;
};

/** What the ranks of a host had done when their communicator failed. */
struct Flight {
  std::string reason;  ///< what the communicator failed with
  std::string host;
  std::string communicator;  ///< what carries the bytes, and between whom
  int world_size = 0;
  std::int64_t now = 0;           ///< of CLOCK_MONOTONIC
  std::int64_t unix_time = 0;     ///< at the same moment, in nanoseconds
  std::vector<RankFlight> ranks;  ///< of this host

  /** Which ranks had not reached which call, and a line for every rank, or for all that are equally
   * far: what it is in, or has done last. */
  std::string table() const;
  /** All calls of all ranks. */
  std::string json() const;
};

/** Where TUTTI_FLIGHT wants flights as JSON; nothing if it is not set. The folder is made if it is
 * missing. Throws InvalidArgument if it cannot be made or written to. */
std::optional<std::filesystem::path> flight_folder();

/** Logs the table of `flight`, and writes its JSON where TUTTI_FLIGHT says; `teller` is the rank
 * that does. */
void tell_flight(const Flight& flight, int teller) noexcept;

}  // namespace tutti::record
