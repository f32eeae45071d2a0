// Messages between two ranks, of one host or of two, and waits for those of several.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "comm/hosts/transport.hpp"
#include "tutti/interrupt.hpp"

namespace tutti {

void HierarchicalTransport::message(const Call& call) {
  WireMail remote(*channel_);
  Transfers transfers(call, rank(), messages_,
                      [&](int peer) {
                        if (layout_.host_of(peer) != host()) return Transfers::Route{&remote, peer};
                        return Transfers::Route{&mail_, layout_.local_rank_of(peer)};
                      },
                      {&mail_, &remote});
  if (transfers.uses(remote)) return finish(transfers);
  mail_.finish(transfers, transfers.receives() ? shm::Wait::recv : shm::Wait::send);
}

/** As Batch::wait(), but the ranks of this host may have something for it as well. */
void HierarchicalTransport::finish(Transfers& transfers) {
  local_->group().check_failure();
  const Wire::Side side = transfers.receives() ? Wire::Side::recv : Wire::Side::send;
  std::optional<Wire::Clock::time_point> moved;  // last, or when the wait began
  std::unique_ptr<Wire::Lookout> lookout;
  std::optional<Deadline> deadline;  // of a wait for whoever sends
  bool has_enquired = false;         // likewise, who has left
  const auto progress = [&] {
    if (!transfers.progress()) return false;
    moved.reset();
    if (lookout) lookout->restart();
    deadline.reset();
    return true;
  };
  while (!transfers.done()) {
    if (progress()) continue;
    const auto now = channel_->now();
    if (!moved) moved = now;
    if (!channel_->pause(now - *moved, side)) continue;
    InterruptCheck::poll();
    if (!lookout) lookout = channel_->look_out(side, channel_->timeout());
    const std::vector<int> awaited = transfers.awaited();
    lookout->look(awaited);
    const std::vector<int> neighbours = transfers.awaited_by(mail_);
    if (!neighbours.empty()) local_->group().look_after_mail(neighbours, progress);
    if (!awaited.empty() || transfers.done()) continue;
    const bool from_any = transfers.waits_for_any();
    if (from_any && now - *moved >= Watch::kToEnquire && !std::exchange(has_enquired, true)) {
      channel_->enquire(others());
    }
    if (!deadline) deadline.emplace(channel_->timeout());
    const bool overdue = deadline->expired();
    if (progress()) continue;
    if (from_any) look_after_any(overdue);
    if (overdue) throw CommunicationError(transfers.nothing_came(channel_->timeout()));
  }
  local_->group().check_own_loss();
}

void HierarchicalTransport::look_after_any(bool overdue) {
  const std::vector<int> others = this->others();
  std::vector<int> gone;
  for (const int neighbour : local_->group().those_gone()) {
    gone.push_back(local_->group().name_of(neighbour));
  }
  for (const int leaver : channel_->leavers(others, Wire::Side::recv)) {
    if (layout_.host_of(leaver) != host()) gone.push_back(leaver);
  }
  if (!gone.empty() && (overdue || gone.size() == others.size())) {
    throw PeerLost(std::move(gone), shm::LocalGroup::kGoneMeanwhile);
  }
}

}  // namespace tutti
