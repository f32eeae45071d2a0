// Symmetric memory and sub-communicators over several hosts.
#include <cerrno>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/finally.hpp"
#include "comm/failure.hpp"
#include "comm/hosts/transport.hpp"
#include "comm/shm/transport.hpp"
#include "tutti/error.hpp"

namespace tutti {

using mpi::Channel;
using mpi::Whole;
using shm::Wait;

namespace {

/** How long it may take until the whole knows what a part has found out. */
constexpr std::chrono::milliseconds kForTheWhole{400};
constexpr std::chrono::milliseconds kBetweenLooks{1};

/** Looks after the whole while some of its ranks form a part: when they do not come, all ranks of
 * their hosts may be lost, of which the part knows its own alone. */
class LooksAfterWhole {
 public:
  /** `members`: of the part, with this rank. */
  LooksAfterWhole(Channel& channel, shm::LocalGroup& here, std::vector<int> members)
      : channel_(channel), here_(here), others_(std::move(members)), deadline_(channel.timeout()) {
    std::erase(others_, channel.rank());
  }

  void look() {
    channel_.poll({});  // others may fail to make their part, and say so here
    here_.pulse_elsewhere(Wait::collective);
    if (!find_out_ && deadline_.expires_within(inquiry_lead(channel_.timeout()))) {
      find_out_ = channel_.investigation(others_);
    }
    if (find_out_ && deadline_.expired()) find_out_();
  }
  /** Throws the loss of the whole, if it becomes known soon. */
  void look_for_a_moment() {
    for (Deadline deadline(kForTheWhole); !deadline.expired(); look()) {
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }

 private:
  Channel& channel_;
  shm::LocalGroup& here_;
  std::vector<int> others_;
  Deadline deadline_;
  std::function<void()> find_out_;
};

}  // namespace

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
    part = form_part(
        plan_split(*this, channel_->scratch(), color, key, channel_->session()->next_context()),
        Whole::Makers::all);
    // Nobody goes on with a part that another rank has not got.
    agree(Call::split());
  });
  return part;
}

std::unique_ptr<Transport> HierarchicalTransport::group(std::span<const int> ranks) {
  std::unique_ptr<Transport> part;
  guarded(
      [&] {
        part = form_part(
            plan_group(*this, channel_->scratch(), ranks, channel_->session()->next_context()),
            Whole::Makers::some);
        meet_group(*this, ranks);  // or one would go on with what another one has not got
      },
      Witnesses::two);
  return part;
}

/** This rank's part; null if it has none. Its context is one that no member has used, so parts that
 * share a rank differ in it. */
std::unique_ptr<Transport> HierarchicalTransport::form_part(const PartPlan& plan,
                                                            Whole::Makers makers) {
  if (plan.members.empty()) return nullptr;
  channel_->session()->use_context(plan.context);
  std::vector<int> session_ranks;
  std::vector<int> hosts;
  for (const int member : plan.members) {
    session_ranks.push_back(channel_->members()[static_cast<std::size_t>(member)]);
    hosts.push_back(layout_.host_of(member));
  }
  Layout layout(hosts);
  const std::span<const int> on_host = layout.ranks_of(layout.host_of(plan.rank));
  const std::vector<int> neighbours(on_host.begin(), on_host.end());
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
    return connect_part(std::move(channel), std::move(layout), std::move(local), plan.members,
                        makers);
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
    const std::vector<int>& members, Whole::Makers makers) {
  shm::LocalGroup& here = local_->group();
  const Finally end([&here] { here.end_elsewhere(Wait::collective); });
  LooksAfterWhole after_whole(*channel_, here, members);
  Whole whole(*channel_, members, makers, [&after_whole] { after_whole.look(); });
  try {
    return std::make_unique<HierarchicalTransport>(std::move(channel), std::move(layout),
                                                   std::move(local), &whole);
  } catch (const PeerLost& error) {
    if (whole.has_failed()) throw;
    after_whole.look_for_a_moment();
    std::vector<int> lost;
    for (const int rank : error.ranks()) lost.push_back(members[static_cast<std::size_t>(rank)]);
    if (ended_of(error) == Ended::yes) throw ProcessesEnded(lost, error.reason());
    throw PeerLost(lost, error.reason());
  }
}

}  // namespace tutti
