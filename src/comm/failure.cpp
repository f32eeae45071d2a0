// Fills in reports of failures, cut where they are too long, and throws them.
#include "comm/failure.hpp"

#include <algorithm>
#include <cstdio>
#include <string>

#include "base/text.hpp"

namespace tutti {

Ended ended_of(const PeerLost& error) {
  return dynamic_cast<const ProcessesEnded*>(&error) != nullptr ? Ended::yes : Ended::unknown;
}

void FailureReport::set_lost(std::span<const int> lost, std::string_view reason,
                             Ended are_ended) noexcept {
  kind = Kind::peer_lost;
  ended = are_ended;
  witnesses = Witnesses::all;
  const std::size_t count = std::min(lost.size(), kMostRanks);
  std::copy_n(lost.begin(), count, ranks.begin());
  rank_count = static_cast<std::int32_t>(count);
  std::array<char, 64> more{};
  if (count < lost.size()) {
    std::snprintf(more.data(), more.size(), " (and %zu more ranks)", lost.size() - count);
  }
  set_text(reason, more.data());
}

void FailureReport::set_mismatch(std::string_view message, Witnesses seen_by) noexcept {
  kind = Kind::mismatch;
  ended = Ended::unknown;
  witnesses = seen_by;
  rank_count = 0;
  set_text(message, "");
}

void FailureReport::set_text(std::string_view value, std::string_view remark) noexcept {
  constexpr std::string_view kCut = " [...]";
  const bool fits = value.size() + remark.size() <= kMostText;
  const std::size_t length =
      fits ? value.size() : whole_characters(value, kMostText - remark.size() - kCut.size());
  char* end = std::copy_n(value.begin(), length, text.begin());
  if (!fits) end = std::copy(kCut.begin(), kCut.end(), end);
  end = std::copy(remark.begin(), remark.end(), end);
  text_length = static_cast<std::int32_t>(end - text.begin());
}

void FailureReport::raise() const {
  if (kind == Kind::mismatch) {
    if (witnesses == Witnesses::two) throw NeighboursMismatch(std::string(text_value()));
    throw MismatchError(std::string(text_value()));
  }
  const auto lost = rank_list();
  if (ended == Ended::yes) {
    throw ProcessesEnded({lost.begin(), lost.end()}, std::string(text_value()));
  }
  throw PeerLost({lost.begin(), lost.end()}, std::string(text_value()));
}

}  // namespace tutti
