// What a worker asks of a server.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tutti::ps {

enum class RequestKind : std::uint8_t {
  push_rows,     ///< ids (int64), rows (f32), and if `flags` says so shows and clicks (f32)
  push_dense,    ///< all blocks of the server, one after the other (f32)
  add_rows,      ///< as push_rows, without a rule (GEO)
  add_dense,     ///< as push_dense, without a rule (GEO)
  set_dense,     ///< as push_dense: initial values, of worker 0
  end_round,     ///< `round` of this worker is over (sync: replied to once it has been applied)
  look_up,       ///< ids; reply: rows
  pull_dense,    ///< reply: all blocks of the server
  pull_changed,  ///< table; reply: ids and rows that others changed since the last (GEO)
  barrier,       ///< replied to once all workers that live have asked
  save,          ///< folder's name; replied to once this server's part is there
  finish_save,   ///< folder's name: all servers' parts are there (sent to server 0)
  stop,          ///< the last
};

inline constexpr std::uint8_t kHasShows = 1;
inline constexpr std::uint8_t kHasClicks = 2;

/** Plain bytes. The payload's length follows from it, and from the table. */
struct RequestHeader {
  RequestKind kind{};
  std::uint8_t flags = 0;
  std::uint16_t merged = 1;  ///< batches that a push was merged from
  std::int32_t table = -1;
  std::int64_t count = 0;  ///< ids, elements, or bytes of a name
  std::int64_t round = 0;  ///< steps that the worker had ended before
  std::int64_t payload_bytes = 0;
};

enum class Outcome : std::uint8_t { done, refused, no_memory, lost_worker };

/** Plain bytes. */
struct ReplyHeader {
  Outcome outcome = Outcome::done;
  std::int32_t lost_worker = -1;   ///< with Outcome::lost_worker
  std::int64_t payload_bytes = 0;  ///< rows, values; or the text of a refusal
};

}  // namespace tutti::ps
