// Where a channel begins and ends.
#include "comm/mpi/channel.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <list>
#include <mutex>
#include <optional>
#include <span>

#include "base/finally.hpp"
#include "base/log.hpp"
#include "base/waiter.hpp"
#include "comm/mpi/connect_hosts.hpp"
#include "comm/mpi/lifecycle.hpp"
#include "tutti/error.hpp"

namespace tutti::mpi {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTags = Wire::kTraffics + 1;  // of a context: the last for control messages
int first_tag(const Session& session, int context) {
  const int contexts = (session.last_tag() - kTags + 1) / kTags + 1;
  if (context < 0 || context >= contexts) {
    throw Error("no tags for communicator number " + std::to_string(context) +
                " of an MPI session: MPI's largest tag leaves room for " +
                std::to_string(contexts));
  }
  return context * kTags;
}

int index_of(const std::vector<int>& members, int session_rank) {
  const auto self = std::find(members.begin(), members.end(), session_rank);
  if (self == members.end()) {
    throw InvalidArgument("rank " + std::to_string(session_rank) +
                          " of the session is not one of " + std::to_string(members.size()) +
                          " members");
  }
  return static_cast<int>(self - members.begin());
}

/** How long a process that exits waits for the others to leave, before it finalises MPI: that is
 * not to be done with messages on their way. */
constexpr std::chrono::seconds kAtExit{1};

}  // namespace

/** The channels of this process: those at work, and those that it has left and others have not. */
class Channel::All {
 public:
  /** Never destroyed: it is used at exit. */
  static All& instance() {
    static All& only = *new All;
    return only;
  }

  void add(Channel* channel) {
    const std::lock_guard lock(mutex_);
    present_.push_back(channel);
  }
  void remove(Channel* channel) noexcept {
    if (process_ != ::getpid()) return;  // a forked child cannot even take a mutex
    const std::lock_guard lock(mutex_);
    std::erase(present_, channel);
  }
  void depart(std::unique_ptr<Channel> channel) {
    const std::lock_guard lock(mutex_);
    std::erase(present_, channel.get());
    channel->is_present_ = false;
    departed_.push_back(std::move(channel));
    free_those_all_have_left();
  }

  /** Answers those who ask channels that this rank has left: see Departures. Seldom more than a
   * look at the clock. */
  void tend() noexcept {
    constexpr std::chrono::milliseconds kBetweenLooks{20};
    if (process_ != ::getpid()) return;
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock || departed_.empty()) return;
    const auto now = std::chrono::steady_clock::now();
    if (now - tended_ < kBetweenLooks || !departed_.front()->session_->this_thread_may_call())
      return;
    tended_ = now;
    free_those_all_have_left();
  }

 private:
  /** MPI is initialised by now, so this exit handler runs before the one that finalises it. */
  All() {
    std::atexit([] { instance().leave_at_exit(); });
  }

  /** exit() unwinds nobody's stack: the channels at work are left as well, or given up where a call
   * is under way. */
  void leave_at_exit() noexcept {
    if (process_ != ::getpid()) return;
    const std::lock_guard lock(mutex_);
    std::erase_if(present_,
                  [](const Channel* one) { return !one->session_->this_thread_may_call(); });
    for (Channel* const channel : present_) {
      if (WaitGraph::of_this_process().has_calls()) {
        channel->announce_lost(std::span(&channel->rank_, 1), "its process ends within a call");
      } else {
        channel->watch_.leave();
      }
    }
    const WaitPolicy policy{.nap = std::chrono::milliseconds(1), .interruptible = false};
    for (Waiter waiter(policy, kAtExit); !waiter.expired(); waiter.pause()) {
      free_those_all_have_left();
      std::erase_if(present_, [](Channel* one) { return one->watch_.all_have_left(); });
      if (departed_.empty() && present_.empty()) return;
    }
  }

  void free_those_all_have_left() noexcept {
    std::erase_if(departed_, [](const auto& one) { return one->watch_.all_have_left(); });
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::vector<Channel*> present_;
  std::list<std::unique_ptr<Channel>> departed_;
  std::chrono::steady_clock::time_point tended_{};
};

void Channel::tend_departed() noexcept { All::instance().tend(); }

Channel::Channel(std::shared_ptr<Session> session, std::vector<int> members, int context,
                 std::chrono::milliseconds timeout)
    : session_(std::move(session)),
      members_(std::move(members)),
      first_tag_(first_tag(*session_, context)),
      timeout_(timeout),
      rank_(index_of(members_, session_->rank())),
      unconfirmed_(members_.size()),
      watch_(*session_, members_, rank_, first_tag_ + kTags - 1, timeout_) {
  All::instance().add(this);
}

Channel::~Channel() {
  if (is_present_) All::instance().remove(this);
}

void Channel::leave(std::unique_ptr<Channel> channel) noexcept {
  if (!channel->session_->may_call()) return;  // a forked child cannot even take a mutex
  channel->set_idle({});
  channel->set_heartbeat({});
  channel->scratch_.clear();
  channel->watch_.leave();
  channel->streams_.reset();  // what was sent arrives nevertheless
  try {
    All::instance().depart(std::move(channel));
  } catch (const std::exception& error) {
    log(LogLevel::warn, error.what());
  }
}

void Channel::set_hosts(const Layout& layout, Whole* whole) {
  const Finally end([this] { watch_.end_wait(Side::collective); });
  if (layout.host_count() > 1) survive_lost_connections();
  HostConnections connections = connect_hosts(*this, layout, whole);
  streams_ = std::move(connections.streams);
  const bool leads = layout.local_rank_of(rank_) == 0;
  const auto [are_connected, are_fast] = connections.leaders;
  for (int host = 0; leads && are_connected && host < layout.host_count(); ++host) {
    connected_.push_back(layout.ranks_of(host).front());
  }
  knows_wire_ = are_connected && layout.host_count() > 2;
  is_fast_ = are_fast;
  watch_.set_hosts(layout, std::move(connections.heartbeats));
  has_lane_ = are_connected && has_lanes(layout);
  if (has_lane_ && !leads) streams_ = connect_lane(*this, layout, connections.reached, whole);
}

}  // namespace tutti::mpi
