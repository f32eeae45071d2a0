// Which ranks share a host.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace tutti {

/** The ranks by host: hosts in the order of their lowest rank, ranks ascending inside a host. */
class Layout {
 public:
  /** `host_of_rank` gives equal numbers to ranks of one host. */
  explicit Layout(std::span<const int> host_of_rank);

  int host_count() const { return static_cast<int>(begins_.size()) - 1; }
  /** The number of ranks of the host that has most. */
  int largest_host() const;
  /** Whether all hosts have as many. */
  bool is_even() const { return largest_host() * host_count() == rank_count(); }
  /** The ranks that have the place of `rank` on their hosts, in the order of the hosts, which are
   * even. */
  std::vector<int> lane_of(int rank) const;
  int rank_count() const { return static_cast<int>(host_of_.size()); }
  /** The ranks of one host. */
  std::span<const int> ranks_of(int host) const {
    const std::size_t begin = begins_[static_cast<std::size_t>(host)];
    return std::span(by_host_).subspan(begin, begins_[static_cast<std::size_t>(host) + 1] - begin);
  }
  int host_of(int rank) const { return host_of_[static_cast<std::size_t>(rank)]; }
  /** The place of a rank among those of its host. */
  int local_rank_of(int rank) const { return local_of_[static_cast<std::size_t>(rank)]; }
  /** All ranks, host by host. */
  const std::vector<int>& by_host() const { return by_host_; }
  /** Whether by_host() is the order of the ranks. */
  bool contiguous() const { return contiguous_; }

 private:
  std::vector<int> host_of_;
  std::vector<int> local_of_;
  std::vector<int> by_host_;
  std::vector<std::size_t> begins_{0};  // of the hosts in by_host_, and its end
  bool contiguous_ = true;
};

}  // namespace tutti
