// Symmetric memory and sub-communicators over several hosts.
#include <cerrno>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/finally.hpp"
#include "comm/hosts/transport.hpp"
#include "comm/shm/transport.hpp"
#include "tutti/error.hpp"

namespace tutti {

using mpi::Channel;
using shm::Wait;

Buffer HierarchicalTransport::allocate(std::int64_t bytes) {
  Buffer buffer;
  guarded([&] {
    agree(Call::allocate(bytes));
    std::optional<SystemError> error;
    try {
      buffer = local_->allocate(bytes);
    } catch (const SystemError& failure) {  // the same on all ranks of the host
      error = failure;
    }
    const bool everywhere = all_hosts(!error);
    if (error) throw SystemError(*error);
    if (!everywhere) {
      throw SystemError(
          "another host could not allocate " + std::to_string(bytes) + " bytes of symmetric memory",
          ENOMEM);
    }
  });
  return buffer;
}

std::unique_ptr<Transport> HierarchicalTransport::split(int color, int key) {
  std::unique_ptr<Transport> part;
  // Splits of several communicators of one session must not run at the same time.
  guarded([&] {
    agree(Call::split());
    part = form_part(plan_split(*this, color, key, channel_->session()->next_context()));
    // Nobody goes on with a part that another rank has not got.
    agree(Call::split());
  });
  return part;
}

std::unique_ptr<Transport> HierarchicalTransport::group(std::span<const int> ranks) {
  std::unique_ptr<Transport> part;
  guarded(
      [&] {
        part = form_part(plan_group(*this, ranks, channel_->session()->next_context()));
        meet_group(*this, ranks);  // or one would go on with what another one has not got
      },
      Witnesses::two);
  return part;
}

/** This rank's part; null if it has none. Its context is one that no member has used, so parts that
 * share a rank differ in it. */
std::unique_ptr<Transport> HierarchicalTransport::form_part(const PartPlan& plan) {
  if (plan.members.empty()) return nullptr;
  channel_->session()->use_context(plan.context);
  std::vector<int> session_ranks;
  std::vector<int> hosts;
  for (const int member : plan.members) {
    session_ranks.push_back(channel_->members()[static_cast<std::size_t>(member)]);
    hosts.push_back(layout_.host_of(member));
  }
  Layout layout(hosts);
  const std::vector<int>& neighbours = layout.ranks_of(layout.host_of(plan.rank));
  const UniqueId& id = plan.tickets[static_cast<std::size_t>(neighbours.front())];
  std::vector<int> here;  // the neighbours, as ranks of this host
  for (const int neighbour : neighbours) {
    here.push_back(layout_.local_rank_of(plan.members[static_cast<std::size_t>(neighbour)]));
  }
  try {
    auto local = std::make_unique<shm::Local>(id, layout.local_rank_of(plan.rank), neighbours,
                                              channel_->timeout(),
                                              local_->group().participants_of(std::move(here)));
    if (layout.host_count() == 1) return std::make_unique<shm::ShmTransport>(std::move(local));
    auto channel = std::make_unique<Channel>(channel_->session(), std::move(session_ranks),
                                             plan.context, channel_->timeout());
    return connect_part(std::move(channel), std::move(layout), std::move(local), plan.members);
  } catch (const CommunicationError&) {
    throw;
  } catch (const std::exception& error) {  // the others would wait for this rank
    abort(error.what());
    throw;
  }
}

/** The part's hosts are connected. Whom that loses is named as a rank of the whole, of which
 * `members` are the part. */
std::unique_ptr<Transport> HierarchicalTransport::connect_part(
    std::unique_ptr<mpi::Channel> channel, Layout layout, std::unique_ptr<shm::Local> local,
    const std::vector<int>& members) {
  shm::LocalGroup& whole = local_->group();
  const Finally end([&whole] { whole.end_elsewhere(Wait::collective); });
  bool whole_failed = false;
  const auto look_at_whole = [&] {  // others may fail to make their part, and say so here
    whole_failed = true;
    channel_->poll({});
    whole.pulse_elsewhere(Wait::collective);
    whole_failed = false;
  };
  try {
    return std::make_unique<HierarchicalTransport>(std::move(channel), std::move(layout),
                                                   std::move(local), look_at_whole);
  } catch (const PeerLost& error) {
    if (whole_failed) throw;
    std::vector<int> lost;
    for (const int rank : error.ranks()) lost.push_back(members[static_cast<std::size_t>(rank)]);
    throw PeerLost(lost, error.reason());
  }
}

}  // namespace tutti
