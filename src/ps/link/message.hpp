// What a worker asks of a server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tutti::ps {

enum class RequestKind : std::uint8_t {
  begin,         ///< the first: nothing, or why this worker cannot start; `round`: any number;
                 ///< replied to once all workers have asked, and refused if one of them cannot
  push_rows,     ///< ids (int64), rows (f32), and if `flags` says so shows and clicks (f32)
  push_dense,    ///< some of the server's blocks, one after the other (f32), then their numbers
                 ///< (int32) in that order; `count`: elements
  add_rows,      ///< as push_rows, without a rule (GEO)
  add_dense,     ///< all blocks of the server, one after the other (f32), without a rule (GEO)
  set_dense,     ///< as add_dense: initial values, of worker 0
  answer_all,    ///< nothing; replied to at once, after all that came before
  end_round,     ///< reply: RoundReply; in sync mode once the round has been applied
  look_up,       ///< ids; reply: rows
  pull_dense,    ///< Ranges of the server's blocks; reply: their elements
  pull_changed,  ///< reply: ids, then rows that others changed since the last, `count` at most
                 ///< (GEO); with kAgain the last reply's again, which has not come
  barrier,       ///< replied to once all workers that live have asked
  save,          ///< folder's name, empty: the server's own; `round`: this worker's saves before.
                 ///< Sent again until the server's part is there: Outcome::not_yet before
  finish_save,   ///< the same once all servers' parts are there (to server 0): publishes them;
                 ///< with kDiscard once no more are written, of which one has failed: removes them
  stop,          ///< the last
};

/** Of push_rows and add_rows. */
inline constexpr std::uint8_t kHasShows = 1;
inline constexpr std::uint8_t kHasClicks = 2;
/** Of end_round: replied to once no worker that lives is `count` steps or more behind. */
inline constexpr std::uint8_t kWaitForSlowest = 4;
/** Of pull_changed. */
inline constexpr std::uint8_t kAgain = 8;
/** Of finish_save. */
inline constexpr std::uint8_t kDiscard = 16;

/** Plain bytes. The payload's length follows from it, and from the table. */
struct RequestHeader {
  RequestKind kind{};
  std::uint8_t flags = 0;
  std::int32_t table = -1;
  std::int64_t count = 0;  ///< ids, elements, ranges, or bytes of a name
  std::int64_t round = 0;  ///< steps that the worker has ended
  std::int64_t payload_bytes = 0;
};

/** Of elements of a server's blocks. Plain bytes. */
struct Range {
  std::int64_t offset = 0;
  std::int64_t count = 0;
};

/** What the reply to end_round begins with; the numbers of all workers lost so far (int32) follow.
 * Plain bytes. */
struct RoundReply {
  std::int64_t slowest = 0;   ///< steps that all workers that live have ended
  std::uint8_t save_due = 0;  ///< this worker is to see to a checkpoint in the servers' folder
};

/** Whether the numbers of a header that another process has written are in their ranges. */
inline bool is_request(const RequestHeader& header) {
  return header.kind <= RequestKind::stop && header.count >= 0 && header.payload_bytes >= 0;
}

enum class Outcome : std::uint8_t {
  done,
  refused,
  no_memory,
  lost_worker,
  too_late,
  mismatch,  ///< workers wait for each other
  not_yet,   ///< a checkpoint is being written, for longer than an answer may take: ask again
  not_saved  ///< what became of a checkpoint, which is no push
};

/** Plain bytes. */
struct ReplyHeader {
  Outcome outcome = Outcome::done;
  std::int32_t number = -1;        ///< lost_worker: of which worker; not_saved: the errno
  std::int64_t payload_bytes = 0;  ///< rows, values; or the text of a refusal
};

}  // namespace tutti::ps
