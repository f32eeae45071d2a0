// Short messages that are taken off connections when they have come, if somebody looks for them,
// and naps until something comes.
#include <poll.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "base/memory.hpp"
#include "comm/mpi/sockets/streams.hpp"

namespace tutti::mpi {

std::optional<int> Streams::take(std::byte* data, std::int64_t bytes, Wire::Traffic traffic,
                                 int source, std::span<const int> except) {
  const std::lock_guard lock(mutex_);
  const auto take_of = [&](Stream& stream, bool is_awaited) {
    const bool taken = take_from(stream, data, bytes, traffic);
    if (!taken && is_awaited) stream.confirming.note_wait(stream.connection.socket);
    stream.is_awaited = !taken && (is_awaited || stream.is_awaited);
    return taken;
  };
  if (source != Wire::kAnybody) {
    const bool taken = take_of(stream_to(source, traffic), true);
    return taken ? std::optional(source) : std::nullopt;
  }
  for (Stream& stream : streams_) {
    if (column_of(stream.connection.traffic) != column_of(traffic)) continue;
    const int rank = stream.connection.rank;
    if (std::find(except.begin(), except.end(), rank) != except.end()) continue;
    if (take_of(stream, false)) return stream.connection.rank;
  }
  return std::nullopt;
}

bool Streams::has_read(int source, Wire::Traffic traffic) {
  const std::lock_guard lock(mutex_);
  const Stream& stream = stream_to(source, traffic);
  const std::int64_t there = stream.come - stream.used - kHeader;
  if (there < 0) return false;
  const Header header = header_at(stream);
  return traffic_in(header) == traffic && there >= length_in(header);
}

bool Streams::take_from(Stream& stream, std::byte* data, std::int64_t bytes,
                        Wire::Traffic traffic) {
  const bool in_message = stream.receives.first != kNone && at(stream.receives.first).begun;
  if (in_message || !stream.brings || stopped_) return false;
  const Reading how = stream.confirming.looks() ? Reading::look : Reading::take;
  const auto header = next_header(stream, kEarlyOfShort, how);
  if (!header || traffic_in(*header) != traffic) return false;
  const std::int64_t length = length_in(*header);
  if (length > bytes) {
    note_mistake(stream);
    return false;
  }
  if (stream.come - stream.used < kHeader + length) read_early(stream, kEarlyOfShort, how);
  if (stream.come - stream.used < kHeader + length) return false;
  note_header(stream, *header);
  copy_bytes(data, stream.early.data() + stream.used + kHeader, length);
  stream.used += kHeader + length;
  return true;
}

/** What was looked at alone is read now, to where it is. */
bool Streams::take_off(Stream& stream) {
  if (stream.seen == 0) return true;
  std::byte* const to = stream.early.data() + (stream.come - stream.seen);
  stream.seen -= read(stream, to, stream.seen, Reading::take);
  return stream.seen == 0;
}

// --- Naps ---------------------------------------------------------------------------------------

std::size_t Streams::list_awaited(std::span<pollfd> entries) {
  // What has come and is not read, as it is of another kind, would end each nap.
  if (stopped_ || reads_ == reads_at_end_) return 0;
  std::size_t count = 0;
  for (Stream& stream : streams_) {
    if (!stream.awaits()) continue;
    const int first = stream.receives.first;
    if (count == entries.size() || (first != kNone && at(first).begun)) return 0;
    if (!take_off(stream)) return 0;
    stream.confirming.note_nap(stream.connection.socket);
    entries[count++] = {stream.connection.socket.get(), POLLIN, 0};
  }
  return count;
}

void Streams::nap(std::chrono::microseconds limit) {
  std::array<pollfd, kMostLookedAt> entries;
  std::size_t count = 0;
  std::int64_t reads = 0;
  {
    const std::lock_guard lock(mutex_);
    count = list_awaited(entries);
    reads = reads_;
  }
  if (count == 0) return std::this_thread::sleep_for(limit);
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(limit);
  const timespec time{whole.count(), std::chrono::nanoseconds(limit - whole).count()};
  if (::ppoll(entries.data(), count, &time, nullptr) <= 0) return;
  const std::lock_guard lock(mutex_);
  reads_at_end_ = reads;  // another thread may have read meanwhile what has come
}

}  // namespace tutti::mpi
