// A departure's receivers, and the tree of those who have left.
#include "comm/failures/departures.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "comm/failures/heartbeats.hpp"

namespace tutti {

/** A host's ranks are below its leader; a leader below that of the host whose number lacks the last
 * bit: a power of two away, where it has connections, and log2(hosts) steps from the first. */
void Departures::set_hosts(const Layout& layout) {
  const int hosts = layout.host_count();
  if (all_are_connected(hosts) && layout.rank_count() <= kFew) return;
  const int host = layout.host_of(rank_);
  const auto leader_of = [&](int one) { return layout.ranks_of(one).front(); };
  const std::span<const int> here = layout.ranks_of(host);
  next_to_.emplace(here.begin(), here.end());
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

bool Departures::ask(int rank) { return next_to_ && !has_left(rank) && asked_.insert(rank).second; }

bool Departures::hear_enquiry(int source) {
  curious_.insert(source);
  return has_left_ && told_.insert(source).second;
}

void Departures::hear(int source, const Headcount& headcount) {
  if (source == parent_) {
    all_left_ = true;
  } else {
    children_[source] = headcount;
  }
}

Headcount Departures::own_headcount() const {
  // Few ask, while many hosts tell many.
  const auto answers = std::count_if(curious_.begin(), curious_.end(),
                                     [this](int rank) { return told_.contains(rank); });
  const auto answered =
      std::count_if(asked_.begin(), asked_.end(), [this](int rank) { return has_left(rank); });
  return {asked_.size() + told_.size() - static_cast<std::size_t>(answers),
          curious_.size() + heard_.size() - static_cast<std::size_t>(answered)};
}

std::optional<Departures::Word> Departures::next_word() {
  if (!next_to_ || passed_on_) return std::nullopt;
  if (!all_left_) {
    const auto has_told = [this](int rank) { return has_left(rank); };
    if (!std::all_of(asked_.begin(), asked_.end(), has_told)) return std::nullopt;
    Headcount sum = own_headcount();
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
