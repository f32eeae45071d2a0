// A departure's receivers, and the tree of those who have left.
#include "comm/failures/departures.hpp"

#include <algorithm>
#include <bit>

#include "comm/failures/heartbeats.hpp"

namespace tutti {

/** A host's ranks are below its leader; a leader below that of the host whose number lacks the last
 * bit: a power of two away, where it has connections, and log2(hosts) steps from the first. */
void Departures::set_hosts(const Layout& layout) {
  const int hosts = layout.host_count();
  if (all_are_connected(hosts)) return;
  const int host = layout.host_of(rank_);
  const auto leader_of = [&](int one) { return layout.ranks_of(one).front(); };
  next_to_ = layout.ranks_of(host);
  std::erase(*next_to_, rank_);
  for (const int other : connected_hosts(host, hosts)) next_to_->push_back(leader_of(other));
  if (rank_ != leader_of(host)) {
    parent_ = leader_of(host);
    return;
  }
  for (const int rank : layout.ranks_of(host)) {
    if (rank != rank_) children_.try_emplace(rank);
  }
  const auto number = static_cast<unsigned>(host);
  const unsigned last_bit =
      host == 0 ? std::bit_ceil(static_cast<unsigned>(hosts)) : number & (~number + 1);
  if (host != 0) parent_ = leader_of(static_cast<int>(number - last_bit));
  for (unsigned step = 1; step < last_bit && static_cast<int>(number + step) < hosts; step *= 2) {
    children_.try_emplace(leader_of(static_cast<int>(number + step)));
  }
}

std::vector<int> Departures::leave(const MessageCounts& counts) {
  has_left_ = true;
  for (int rank = 0; rank < size_; ++rank) {
    const bool is_told = tells_in_any_case(rank) || curious_.contains(rank) ||
                         counts.sent_to(rank) != MessageCounts::Sent{};
    if (rank != rank_ && is_told) told_.insert(rank);
  }
  return {told_.begin(), told_.end()};
}

bool Departures::tells_in_any_case(int rank) const {
  return !next_to_ || std::find(next_to_->begin(), next_to_->end(), rank) != next_to_->end();
}

bool Departures::is_to_be_asked(int rank) const { return next_to_ && !has_left(rank); }

bool Departures::hear_enquiry(int source) {
  if (has_left_) return told_.insert(source).second;
  curious_.insert(source);
  return false;
}

void Departures::hear(int source, const Headcount& headcount) {
  if (source == parent_) {
    all_left_ = true;
  } else {
    children_[source] = headcount;
  }
}

std::optional<Departures::Word> Departures::next_word() {
  if (!next_to_ || passed_on_) return std::nullopt;
  if (!all_left_) {
    Headcount sum{told_.size(), heard_.size()};
    for (const auto& [child, said] : children_) {
      if (!said) return std::nullopt;
      sum.told += said->told;
      sum.heard += said->heard;
    }
    if (parent_ >= 0) {
      if (said_ == sum) return std::nullopt;
      said_ = sum;
      return Word{sum, {parent_}};
    }
    if (sum.told != sum.heard) return std::nullopt;
    all_left_ = true;
  }
  passed_on_ = true;
  Word word;
  for (const auto& [child, said] : children_) word.receivers.push_back(child);
  return word;
}

bool Departures::all_have_left() const {
  return next_to_ ? all_left_ : static_cast<int>(heard_.size()) + 1 == size_;
}

const MessageCounts::Sent* Departures::sent_by(int rank) const {
  const auto leaver = heard_.find(rank);
  return leaver == heard_.end() ? nullptr : &leaver->second;
}

}  // namespace tutti
