// Parcels that leave, travel, and are matched with those who want them.
#include "comm/simulation/wire.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>

#include "tutti/error.hpp"

namespace tutti::simulation {
namespace {

constexpr std::chrono::microseconds kSpin{200};       // a wait that has lasted so long looks around
constexpr std::chrono::milliseconds kLongestNap{20};  // of a wait for which nothing comes
constexpr std::chrono::milliseconds kShortestNap{1};
constexpr std::chrono::milliseconds kBetweenLooks{1};  // for whether all have left
constexpr std::chrono::seconds kToLeave{1};

bool is_taken(Wire::Traffic traffic) {
  return traffic == Wire::Traffic::offer || traffic == Wire::Traffic::note ||
         traffic == Wire::Traffic::question;
}

/** What collectives send to one rank arrives in order, but for questions, and what goes ahead. */
int lane_of(Wire::Traffic traffic) {
  const bool in_order = traffic == Wire::Traffic::note || traffic == Wire::Traffic::noted;
  return static_cast<int>(in_order ? Wire::Traffic::collective : traffic);
}

/** Of a watch: those of the processes' wait-for graphs are negative. */
int control_tag(int context) { return context; }

std::vector<int> ranks_up_to(int count) {
  std::vector<int> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// No message touches it. NOLINTNEXTLINE(performance-unnecessary-value-param): a ScratchPool::Leave
void leave_memory(std::shared_ptr<const void> /*memory*/) noexcept {}

}  // namespace

SimulatedWire::SimulatedWire(Process& process, int context, std::chrono::milliseconds timeout)
    : process_(process),
      context_(context),
      timeout_(timeout),
      members_(ranks_up_to(process.size())),
      scratch_(&leave_memory),
      watch_(process, members_, process.rank(), control_tag(context), timeout) {
  make_connections();
  process_.wires_[context] = this;
  for (const auto& parcel : process_.too_early_[context]) come(parcel);
  process_.too_early_.erase(context);
}

SimulatedWire::~SimulatedWire() {
  load_all();
  process_.wires_.erase(context_);
}

void SimulatedWire::connect() {
  watch_.set_hosts(process_.cluster().layout(), process_.cluster().connect(process_));
}

void SimulatedWire::leave() {
  watch_.leave();
  const auto limit = now() + kToLeave;
  while (!watch_.all_have_left() && now() < limit) process_.wait(kBetweenLooks);
}

Wire::Clock::time_point SimulatedWire::now() const { return process_.cluster().scheduler().now(); }

// --- Sending ------------------------------------------------------------------------------------

Wire::Posted SimulatedWire::new_operation(std::byte* data, std::int64_t bytes) {
  if (free_.empty()) {
    operations_.emplace_back();
    free_.push_back(operations_.size());
  }
  const Posted posted = free_.back();
  free_.pop_back();
  operation(posted) = {data, bytes, false, 0};
  return posted;
}

std::shared_ptr<Parcel> SimulatedWire::new_parcel(const std::byte* data, std::int64_t bytes,
                                                  int destination, Traffic traffic) {
  if (process_.is_killed()) throw Killed();
  if (side_of(traffic) == Side::collective) bytes_sent_ += bytes;
  Cluster& cluster = process_.cluster();
  ++cluster.traffic().messages;
  cluster.traffic().bytes += bytes;
  const Posted posted = new_operation(nullptr, bytes);
  return std::make_shared<Parcel>(
      Parcel{this, posted, data, bytes, rank(), destination, context_, traffic});
}

Wire::Posted SimulatedWire::post_send(const std::byte* data, std::int64_t bytes, int destination,
                                      Traffic traffic) {
  const auto parcel = new_parcel(data, bytes, destination, traffic);
  if (Connection* const connection = connection_to(destination, traffic)) {
    connection->waiting.push_back(parcel);
    push(*connection);
  } else {
    transmit(parcel);
  }
  return parcel->send;
}

void SimulatedWire::transmit(const std::shared_ptr<Parcel>& parcel) {
  Cluster& cluster = process_.cluster();
  const std::uint64_t lane =
      (static_cast<std::uint64_t>(rank()) << 40U) ^
      (static_cast<std::uint64_t>(parcel->destination) << 16U) ^
      static_cast<std::uint64_t>(context_ * kTraffics + lane_of(parcel->traffic));
  const Scheduler::Time left =
      cluster.network().send(process_.host(), cluster.process(parcel->destination).host(),
                             parcel->bytes, lane, [&cluster, parcel] { arrive(cluster, parcel); });
  cluster.scheduler().at(left, [parcel] { leave_host(*parcel); });
  while (!leaving_.empty() && leaving_.front()->sender == nullptr) leaving_.pop_front();
  leaving_.push_back(parcel);
}

void SimulatedWire::load(Parcel& parcel) const {
  if (parcel.bytes > process_.cluster().most_copied()) return;
  parcel.contents.assign(parcel.data, parcel.data + parcel.bytes);
}

void SimulatedWire::leave_host(Parcel& parcel) {
  SimulatedWire* const wire = std::exchange(parcel.sender, nullptr);
  if (wire == nullptr) return;
  wire->load(parcel);
  if (parcel.behind > 0) return wire->note_part();
  wire->end(wire->operation(parcel.send));
}

void SimulatedWire::load_all() {
  for (const auto& parcel : leaving_) {
    if (std::exchange(parcel->sender, nullptr) != nullptr) load(*parcel);
  }
  leaving_.clear();
}

void SimulatedWire::drop_all() {
  for (const auto& parcel : leaving_) {
    if (std::exchange(parcel->sender, nullptr) != nullptr) parcel->dropped = true;
  }
  leaving_.clear();
  queues_.clear();
  for (auto& [key, connection] : connections_) connection = {};
  for (Parcels& parcels : taken_) parcels.clear();
}

// --- Receiving ----------------------------------------------------------------------------------

Wire::Posted SimulatedWire::post_receive(std::byte* data, std::int64_t bytes, int source,
                                         Traffic traffic) {
  const Posted posted = new_operation(data, bytes);
  post_receive(posted, source, traffic);
  return posted;
}

void SimulatedWire::post_receive(Posted posted, int source, Traffic traffic) {
  if (Connection* const connection = connection_to(source, traffic)) {
    connection->wanted.push_back({posted, traffic});
    return pull(*connection);
  }
  Queue& queue = queue_of(source, traffic);
  if (queue.come.empty()) {
    queue.wanted.push_back(posted);
  } else {
    unload(*queue.come.front(), posted);
    queue.come.pop_front();
  }
}

bool SimulatedWire::unload(const Parcel& parcel, Posted posted) {
  Operation& receive = operation(posted);
  receive.begun = true;
  const std::int64_t length = parcel.before + parcel.bytes + parcel.behind;
  if (length > receive.bytes || (receive.passed && length < receive.bytes)) {
    receive.too_long = parcel.source;
  } else {
    std::memcpy(receive.data + parcel.before, parcel.contents.data(), parcel.contents.size());
    if (receive.passed) receive.passed->missing = parcel.behind;
    if (parcel.behind > 0) {
      note_part();
      return false;
    }
  }
  end(receive);
  return true;
}

/** A long wait sees that bytes move. */
void SimulatedWire::note_part() {
  parts_moved_ = true;
  process_.wake(process_.cluster().tick());
}

void SimulatedWire::end(Operation& operation) {
  operation.ended = true;
  operation.passed.reset();
  if (operation.wait == wait_ && --waited_for_ == 0) {
    process_.wake({});
  } else {
    process_.wake(process_.cluster().tick());
  }
}

void SimulatedWire::arrive(Cluster& cluster, const std::shared_ptr<Parcel>& parcel) {
  Process& process = cluster.process(parcel->destination);
  if (parcel->dropped || process.killed_) return;
  const auto wire = process.wires_.find(parcel->context);
  if (wire == process.wires_.end()) {
    process.too_early_[parcel->context].push_back(parcel);
  } else {
    wire->second->come(parcel);
  }
}

void SimulatedWire::come(const std::shared_ptr<Parcel>& parcel) {
  if (abandoned_) return;
  if (Connection* const connection = connection_to(parcel->source, parcel->traffic)) {
    connection->come.push_back(parcel);
    if (!process_.is_stopped()) pull(*connection);
    if (!connection->come.empty()) process_.wake(process_.cluster().tick());
    return;
  }
  if (is_taken(parcel->traffic)) {
    taken_[static_cast<std::size_t>(parcel->traffic)].push_back(parcel);
    return process_.wake(process_.cluster().tick());
  }
  Queue& queue = queue_of(parcel->source, parcel->traffic);
  if (queue.wanted.empty()) {
    queue.come.push_back(parcel);  // nobody waits for it
  } else {
    unload(*parcel, queue.wanted.front());
    queue.wanted.pop_front();
  }
}

std::optional<int> SimulatedWire::take(std::byte* data, std::int64_t bytes, Traffic traffic,
                                       int source, std::span<const int> except) {
  if (!is_taken(traffic)) throw std::logic_error("messages of this kind are not taken");
  const auto is_meant = [&](int sender) {
    if (source != kAnybody) return sender == source;
    return std::find(except.begin(), except.end(), sender) == except.end();
  };
  move_all();
  for (auto& [key, connection] : connections_) {
    if (key.second != column_of(traffic) || !is_meant(key.first)) continue;
    if (const auto sender = take_from(connection, data, bytes, traffic)) return sender;
  }
  Parcels& come = taken_[static_cast<std::size_t>(traffic)];
  const auto found = std::find_if(come.begin(), come.end(),
                                  [&](const auto& one) { return is_meant(one->source); });
  if (found == come.end()) return std::nullopt;
  const auto parcel = std::move(*found);
  come.erase(found);
  return copy_out(*parcel, data, bytes);
}

/** Who has sent it. */
int SimulatedWire::copy_out(const Parcel& parcel, std::byte* data, std::int64_t bytes) {
  if (parcel.bytes > bytes) throw std::logic_error("a message is too long to be taken");
  std::memcpy(data, parcel.contents.data(), parcel.contents.size());
  const int sender = parcel.source;
  watch_.progressed();
  return sender;
}

void SimulatedWire::withdraw(Posted receive) {
  if (operation(receive).ended || operation(receive).begun) {
    throw std::logic_error("a receive is withdrawn that has begun");
  }
  for (auto& [key, queue] : queues_) std::erase(queue.wanted, receive);
  for (auto& [key, connection] : connections_) {
    std::erase_if(connection.wanted, [&](const Wanted& one) { return one.receive == receive; });
  }
  free_.push_back(receive);
}

void SimulatedWire::abandon(Traffic /*traffic*/, std::span<Posted> /*receives*/,
                            std::span<const Posted> /*sends*/,
                            std::span<const std::shared_ptr<const void>> /*kept*/) noexcept {
  process_.fail();
  abandoned_ = true;
  // MPI may send on what has not left, and must not: nobody may call it any more.
  drop_all();
}

// --- Waiting ------------------------------------------------------------------------------------

bool SimulatedWire::progress(std::span<Posted> posted, std::span<const int> /*peers*/) {
  move_all();
  bool moved = std::exchange(parts_moved_, false);
  ++wait_;
  waited_for_ = 0;
  for (Posted& one : posted) {
    if (one == kEnded) continue;
    if (!operation(one).ended) {
      operation(one).wait = wait_;
      ++waited_for_;
      continue;
    }
    if (const auto sender = operation(one).too_long) {  // and it never ends
      watch_.lose_by_message({*sender},
                             "it has sent a message of another length than was expected");
    }
    free_.push_back(one);
    one = kEnded;
    moved = true;
  }
  if (moved) watch_.progressed();
  return moved;
}

bool SimulatedWire::pause(Clock::duration still, Side /*side*/) {
  const auto begun = now();
  const Clock::duration longest =
      still < kSpin ? kSpin - still
                    : std::clamp<Clock::duration>(still / 8, kShortestNap, kLongestNap);
  process_.wait(longest);
  return still + (now() - begun) >= kSpin;
}

}  // namespace tutti::simulation
