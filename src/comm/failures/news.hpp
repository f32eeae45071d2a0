// Whom those who know of a failure tell, where there are too many ranks for one to tell all.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/layout.hpp"

namespace tutti {

/** Who has told a rank of a failure; itself, if it has found it. */
enum class NewsFrom : std::uint8_t { itself, own_host, another_host };

/** A rank that has come to know of a failure, and what it knows besides. */
struct NewsBearer {
  int rank;
  NewsFrom from;
  std::span<const int> lost;               ///< by that failure
  std::span<const int> told_hosts;         ///< over connections of this rank
  std::span<const int> askers;             ///< who have waited for this rank
  std::function<bool(int rank)> has_left;  ///< as far as is known
};

/**
 * The ranks to which it sends a control message. News pass from host to host, between those that
 * have connections: each is told by 2 log2(hosts) others, so that some may be lost, have left, or
 * compute, and all know after log2(hosts) steps. The leaders' connections carry them; a message
 * goes where there is none: a finder, and the lowest two of its host that are left, tell the
 * lowest ranks of those hosts, since a leader may compute. Who is told by another host tells its
 * own. And each tells some of those who wait for it, whose leaders may compute, or with whose host
 * no connection is left: they ask it no more. So a rank sends O(log2(hosts)) messages, besides
 * those inside its host.
 */
std::vector<int> receivers_of_news(const Layout& layout, const NewsBearer& bearer);

}  // namespace tutti
