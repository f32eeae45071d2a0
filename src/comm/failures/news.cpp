// Whom those who know of a failure tell, where there are too many ranks for one to tell all.
#include "comm/failures/news.hpp"

#include <algorithm>
#include <cstddef>

#include "comm/failures/heartbeats.hpp"

namespace tutti {
namespace {

constexpr std::size_t kMostAskers = 32;

bool contains(std::span<const int> numbers, int one) {
  return std::find(numbers.begin(), numbers.end(), one) != numbers.end();
}

class Receivers {
 public:
  Receivers(const Layout& layout, const NewsBearer& bearer)
      : layout_(layout), bearer_(bearer), own_host_(layout.host_of(bearer.rank)) {}

  std::vector<int> all() {
    if (bearer_.from != NewsFrom::own_host) add_own_host();
    if (tells_other_hosts()) add_other_hosts();
    add_askers();
    return std::move(ranks_);
  }

 private:
  bool is_gone(int rank) const { return contains(bearer_.lost, rank) || bearer_.has_left(rank); }
  /** Who is lost itself, and comes late, hears of it all the same. */
  void add_own_host() {
    for (const int rank : layout_.ranks_of(own_host_)) {
      if (rank != bearer_.rank) ranks_.push_back(rank);
    }
  }
  /** A finder does; of its host two do as well, of which one may be the finder, which may have been
   * stopped since; of a host that is told by another one the first. */
  bool tells_other_hosts() const {
    const std::span<const int> here = layout_.ranks_of(own_host_);
    const auto before = std::count_if(
        here.begin(), here.end(), [&](int rank) { return rank < bearer_.rank && !is_gone(rank); });
    switch (bearer_.from) {
      case NewsFrom::itself:
        return true;
      case NewsFrom::own_host:
        return before < 2;
      default:
        return before < 1;
    }
  }
  void add_other_hosts() {
    for (const int host : connected_hosts(own_host_, layout_.host_count())) {
      if (contains(bearer_.told_hosts, host)) continue;
      const std::span<const int> there = layout_.ranks_of(host);
      const auto first =
          std::find_if(there.begin(), there.end(), [&](int rank) { return !is_gone(rank); });
      if (first != there.end()) ranks_.push_back(*first);
    }
  }
  void add_askers() {
    std::size_t told = 0;
    for (const int rank : bearer_.askers) {
      if (told == kMostAskers) return;
      const int host = layout_.host_of(rank);
      const bool leads = layout_.local_rank_of(rank) == 0;
      const bool is_told = host == own_host_ || contains(ranks_, rank) ||
                           (leads && contains(bearer_.told_hosts, host));
      if (is_told || is_gone(rank)) continue;
      ranks_.push_back(rank);
      ++told;
    }
  }

  const Layout& layout_;
  const NewsBearer& bearer_;
  int own_host_;
  std::vector<int> ranks_;
};

}  // namespace

std::vector<int> receivers_of_news(const Layout& layout, const NewsBearer& bearer) {
  return Receivers(layout, bearer).all();
}

}  // namespace tutti
