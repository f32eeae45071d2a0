// The alpha-beta model, link by link.
#include "comm/simulation/network.hpp"

#include <algorithm>

namespace tutti::simulation {

Network::Network(Scheduler& scheduler, NetworkModel model, int hosts, std::uint64_t seed)
    : scheduler_(scheduler),
      model_(model),
      links_(static_cast<std::size_t>(hosts), Link{1e9 / model.bytes_per_second}),
      draws_(seed) {}

Network::Duration Network::time_of(const Link& link, std::int64_t bytes) const {
  const auto nanoseconds =
      static_cast<std::int64_t>(static_cast<double>(bytes) * link.nanoseconds_per_byte);
  return model_.overhead + std::chrono::nanoseconds(nanoseconds);
}

Network::Time Network::send(int from, int to, std::int64_t bytes, std::uint64_t lane,
                            std::function<void()> arrived) {
  const Time now = scheduler_.now();
  if (from == to) {
    scheduler_.at(now + model_.latency_inside, std::move(arrived));
    return now;
  }
  Link& link = links_[static_cast<std::size_t>(from)];
  const Time start = std::max(now, link.out_free);
  link.out_free = start + time_of(link, bytes);
  note_queue(link, link.out_free);
  Time head = start + model_.latency;
  if (model_.jitter.count() > 0) {
    head += Duration(
        static_cast<std::int64_t>(draws_() % static_cast<std::uint64_t>(model_.jitter.count())));
    Time& last = last_[lane];
    head = last = std::max(head, last);
  }
  if (free_.empty()) {
    transfers_.push_back(std::make_unique<Transfer>());
    free_.push_back(transfers_.back().get());
  }
  Transfer* const transfer = free_.back();
  free_.pop_back();
  *transfer = {from, to, bytes, link.out_free, std::move(arrived)};
  scheduler_.at(head, [this, transfer] { reach(transfer); });
  return link.out_free;
}

/** The first byte is at the receiver's link. */
void Network::reach(Transfer* transfer) {
  if (cut_since(transfer->from, transfer->to)) {
    held_.push_back(transfer);
    return;
  }
  Link& link = links_[static_cast<std::size_t>(transfer->to)];
  const Time start = std::max(scheduler_.now(), link.in_free);
  link.in_free = start + time_of(link, transfer->bytes);
  note_queue(link, link.in_free);
  const Time there = std::max(link.in_free, transfer->left + model_.latency);
  scheduler_.at(there, [this, transfer] {
    const std::function<void()> arrived = std::move(transfer->arrived);
    free_.push_back(transfer);
    arrived();
  });
}

void Network::note_queue(Link& link, Time until) const {
  if (link.is_slow) link.queues.push_back({scheduler_.now(), until});
}

void Network::slow_down(int host, double factor) {
  Link& link = links_[static_cast<std::size_t>(host)];
  link.nanoseconds_per_byte *= factor;
  link.is_slow = true;
}

Network::Duration Network::longest_queue(int host, Time begin, Time end) const {
  Duration longest{};
  for (const Queue& queue : links_[static_cast<std::size_t>(host)].queues) {
    if (queue.since <= end) longest = std::max(longest, queue.until - std::max(begin, queue.since));
  }
  return longest;
}

void Network::cut(int one, int other) { cuts_.try_emplace(pair_of(one, other), scheduler_.now()); }

void Network::heal(int one, int other) {
  cuts_.erase(pair_of(one, other));
  std::vector<Transfer*> held;
  held.swap(held_);
  for (Transfer* const transfer : held) reach(transfer);
}

std::optional<Network::Time> Network::cut_since(int one, int other) const {
  const auto found = cuts_.find(pair_of(one, other));
  if (found == cuts_.end()) return std::nullopt;
  return found->second;
}

}  // namespace tutti::simulation
