// Cuts lists of ids into the shares of servers.
#include "ps/modes/split.hpp"

#include <algorithm>
#include <cstring>

#include "ps/table/place.hpp"

namespace tutti::ps {

IdSplit::IdSplit(std::span<const std::int64_t> ids, Split split, int servers,
                 const std::optional<std::int64_t>& skipped)
    : whole_(ids) {
  const bool skips = skipped && std::find(ids.begin(), ids.end(), *skipped) != ids.end();
  if (servers == 1 && !skips) return;
  parts_.resize(static_cast<std::size_t>(servers));
  // An eighth more than an equal share: hashes are seldom further apart.
  const std::size_t expected = ids.size() / parts_.size() * 9 / 8 + 16;
  for (Part& part : parts_) {
    part.ids.reserve(expected);
    part.positions.reserve(expected);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (skips && ids[i] == *skipped) continue;
    Part& part = parts_[static_cast<std::size_t>(place_of(ids[i], split, servers).server)];
    part.ids.push_back(ids[i]);
    part.positions.push_back(static_cast<std::int64_t>(i));
  }
}

IdShare IdSplit::share(int server) const {
  if (parts_.empty()) return {whole_, {}};
  const Part& part = parts_[static_cast<std::size_t>(server)];
  return {part.ids, part.positions};
}

void gather(const float* from, std::span<const std::int64_t> positions, std::int64_t count,
            std::int64_t dim, float* to) {
  const std::size_t row = static_cast<std::size_t>(dim) * sizeof(float);
  if (positions.empty()) {
    if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * row);
    return;
  }
  for (const std::int64_t position : positions) {
    std::memcpy(to, from + position * dim, row);
    to += dim;
  }
}

}  // namespace tutti::ps
