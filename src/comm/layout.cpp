// Sorts the ranks by host.
#include "comm/layout.hpp"

#include <algorithm>
#include <map>

namespace tutti {

Layout::Layout(std::span<const int> host_of_rank) {
  std::map<int, int> numbers;  // hosts in the order of their lowest rank
  for (std::size_t rank = 0; rank < host_of_rank.size(); ++rank) {
    const auto [entry, is_new] =
        numbers.try_emplace(host_of_rank[rank], static_cast<int>(numbers.size()));
    if (is_new) hosts_.emplace_back();
    auto& ranks = hosts_[static_cast<std::size_t>(entry->second)];
    host_of_.push_back(entry->second);
    local_of_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(rank));
  }
  for (const auto& ranks : hosts_) by_host_.insert(by_host_.end(), ranks.begin(), ranks.end());
  contiguous_ = std::is_sorted(by_host_.begin(), by_host_.end());
}

int Layout::largest_host() const {
  std::size_t most = 0;
  for (const auto& ranks : hosts_) most = std::max(most, ranks.size());
  return static_cast<int>(most);
}

}  // namespace tutti
