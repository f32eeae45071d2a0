// Sorts the ranks by host.
#include "comm/layout.hpp"

#include <algorithm>
#include <map>

namespace tutti {

Layout::Layout(std::span<const int> host_of_rank) {
  std::map<int, int> numbers;  // hosts in the order of their lowest rank
  std::vector<int> sizes;
  host_of_.reserve(host_of_rank.size());
  local_of_.reserve(host_of_rank.size());
  for (const int host : host_of_rank) {
    const auto [entry, is_new] = numbers.try_emplace(host, static_cast<int>(numbers.size()));
    if (is_new) sizes.push_back(0);
    host_of_.push_back(entry->second);
    local_of_.push_back(sizes[static_cast<std::size_t>(entry->second)]++);
  }
  for (const int size : sizes) begins_.push_back(begins_.back() + static_cast<std::size_t>(size));
  by_host_.resize(host_of_.size());
  for (std::size_t rank = 0; rank < host_of_.size(); ++rank) {
    const auto host = static_cast<std::size_t>(host_of_[rank]);
    by_host_[begins_[host] + static_cast<std::size_t>(local_of_[rank])] = static_cast<int>(rank);
  }
  contiguous_ = std::is_sorted(by_host_.begin(), by_host_.end());
}

int Layout::largest_host() const {
  std::size_t most = 0;
  for (int host = 0; host < host_count(); ++host) most = std::max(most, ranks_of(host).size());
  return static_cast<int>(most);
}

std::vector<int> Layout::lane_of(int rank) const {
  std::vector<int> lane;
  for (int host = 0; host < host_count(); ++host) {
    lane.push_back(ranks_of(host)[static_cast<std::size_t>(local_rank_of(rank))]);
  }
  return lane;
}

}  // namespace tutti
