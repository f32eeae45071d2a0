// Asks for the time over the communicator.
#include "comm/record/clock_offset.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <vector>

#include "base/system.hpp"
#include "base/text.hpp"

namespace tutti::record {
namespace {

constexpr int kRounds = 32;

View one(std::int64_t& value) { return {&value, 1, DType::i64}; }

/** On rank 0: by how much the clock of `peer` is ahead. */
ClockOffset ask(Communicator& communicator, int peer, ReadClock read) {
  ClockOffset best{0, std::numeric_limits<std::int64_t>::max()};
  for (int round = 0; round < kRounds; ++round) {
    std::int64_t asked = read();
    std::int64_t answer = 0;
    communicator.send(one(asked), peer);
    communicator.recv(one(answer), peer);
    const std::int64_t half = (read() - asked + 1) / 2;
    if (half < best.error) best = {answer - (asked + half), half};
  }
  return best;
}

void answer(Communicator& communicator, ReadClock read) {
  for (int round = 0; round < kRounds; ++round) {
    std::int64_t value = 0;
    communicator.recv(one(value), 0);
    value = read();
    communicator.send(one(value), 0);
  }
}

}  // namespace

std::uint64_t clock_identity() {
  // A time namespace moves CLOCK_MONOTONIC.
  std::array<char, 64> name{};
  const ssize_t length = ::readlink("/proc/self/ns/time", name.data(), name.size());
  const std::string space(name.data(), static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  return hash_text(boot_id() + space);
}

ClockOffset measure_clock(Communicator& communicator, std::uint64_t identity, ReadClock read) {
  const auto size = static_cast<std::size_t>(communicator.world_size());
  auto own = static_cast<std::int64_t>(identity);
  std::vector<std::int64_t> all(size);
  communicator.all_gather(one(own), {all.data(), std::ssize(all), DType::i64});
  std::vector<std::int64_t> offsets(2 * size);  // of the first rank of each clock, and its error
  for (std::size_t peer = 1; peer < size; ++peer) {
    const bool first =
        std::find(all.begin(), all.end(), all[peer]) - all.begin() == static_cast<int>(peer);
    if (!first) continue;
    if (communicator.global_rank() == 0) {
      const ClockOffset offset = ask(communicator, static_cast<int>(peer), read);
      offsets[2 * peer] = offset.offset;
      offsets[2 * peer + 1] = offset.error;
    } else if (communicator.global_rank() == static_cast<int>(peer)) {
      answer(communicator, read);
    }
  }
  communicator.broadcast({offsets.data(), std::ssize(offsets), DType::i64}, 0);
  const auto first = static_cast<std::size_t>(std::find(all.begin(), all.end(), own) - all.begin());
  return {offsets[2 * first], offsets[2 * first + 1]};
}

}  // namespace tutti::record
