// Sums of sparse vectors over several hosts.
#include "comm/hosts/sparse.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/memory.hpp"
#include "comm/hosts/group/movements.hpp"
#include "comm/hosts/transport.hpp"
#include "device/cpu/reduction.hpp"

namespace tutti {
namespace {

// Shorter exchanges tell about waiting, not about the wire.
constexpr std::int64_t kTimed = std::int64_t{64} * 1024;
constexpr double kNewest = 0.25;  // weight of the newest measurement

/** What the leaders tell each other first. */
struct Report {
  double seconds_per_byte = 0.0;
  std::int32_t forced = -1;  ///< a SparseAlgorithm; the first host's counts
  PacketSize packets;        ///< all of the host's together
  SparseSketch::Summary sketch;
};

/** Throws CorruptPacket if rank `rank` cannot have reported that of a sum of `count` elements. */
void check(const Report& report, std::int64_t count, int rank) {
  const auto& packets = report.packets;
  const auto last = static_cast<std::int32_t>(SparseAlgorithm::dense);
  const bool sound = report.forced >= -1 && report.forced <= last && report.forced != 0 &&
                     report.sketch.count <= SparseSketch::kKept && packets.count >= 0 &&
                     packets.count <= count && packets.bytes >= packets.count &&
                     std::isfinite(report.seconds_per_byte);
  if (sound) return;
  throw CorruptPacket(
      rank, "what rank " + std::to_string(rank) + " reports of its sparse packets is corrupt");
}

/** Byte offsets of stretches that lie one behind the other. */
RecycledVector<std::int64_t> offsets_of(std::span<const PacketSize> sizes) {
  RecycledVector<std::int64_t> offsets{0};
  for (const PacketSize& size : sizes) offsets.push_back(offsets.back() + size.bytes);
  return offsets;
}

/** Every `step`-th of them, and the last. */
RecycledVector<std::int64_t> every(std::span<const std::int64_t> offsets, int step) {
  RecycledVector<std::int64_t> some;
  for (std::size_t i = 0; i < offsets.size(); i += static_cast<std::size_t>(step)) {
    some.push_back(offsets[i]);
  }
  return some;
}

}  // namespace

std::int64_t sparse_range(std::int64_t count, int hosts, int host) {
  return host == hosts ? count : share_of(count, sizeof(float), hosts, host).begin;
}

Scratch packet_memory(Wire& wire, std::int64_t bytes, std::int64_t count) {
  constexpr std::int64_t kLeast = std::int64_t{64} * 1024;
  const std::int64_t elements = std::min(count, kMostReserved);
  const std::int64_t room = 2 * elements * static_cast<std::int64_t>(sizeof(float));
  return {wire.scratch(), std::max({bytes, room, kLeast})};
}

std::int64_t sum_packets(const PacketSizes& sizes, int ranges, const std::byte* data,
                         const Layout& layout, float* out, std::int64_t count,
                         std::int64_t divisor) {
  const bool gathered = std::ssize(sizes) > ranges;
  RecycledVector<SparsePacket> all;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const int range = static_cast<int>(i) % ranges;
    const int host = gathered ? static_cast<int>(i) / ranges : range;
    all.push_back({data, sizes[i], sparse_range(count, ranges, range),
                   sparse_range(count, ranges, range + 1), layout.ranks_of(host).front()});
    data += sizes[i].bytes;
  }
  RecycledVector<PacketCursor> sources;  // one a host; a single one if the ranges are summed up
  const auto length = static_cast<std::size_t>(ranges);
  for (std::size_t i = 0; i < all.size(); i += length) {
    sources.emplace_back(std::span(all).subspan(i, length));
  }
  return sum_dense(std::span(sources), out, 0, count, divisor);
}

// --- The host's own sum -------------------------------------------------------------------------

void SparseLeader::begin(std::int64_t count) {
  count_ = count;
  writer_.reserve(std::min(count, kMostReserved));
  writer_.clear();
  sizes_.clear();
  writer_.begin_packet(0);
  range_end_ = sparse_range(count_, hosts(), 1);
}

void SparseLeader::next_range() {
  sizes_.push_back(writer_.end_packet());
  writer_.begin_packet(range_end_);
  range_end_ =
      sparse_range(count_, hosts(), std::min(static_cast<int>(sizes_.size()) + 1, hosts()));
}

void SparseLeader::put(std::uint32_t index, float value) {
  while (index >= range_end_) next_range();
  writer_.add(index, value);
}

void SparseLeader::add(std::int64_t end, std::span<const SparseView> parts) {
  cursors_.clear();
  for (const SparseView& part : parts) cursors_.emplace_back(part);
  const auto take = [this](std::uint32_t index, float value) { put(index, value); };
  if (parts.size() == 1) return cursors_[0].take_below(end, take);
  sum_sparse(std::span(cursors_), end, block_, take);
}

SparsePacket SparseLeader::packet_of(const std::byte* data, const PacketSize& size, int range,
                                     std::size_t host) const {
  return {data, size, sparse_range(count_, hosts(), range),
          sparse_range(count_, hosts(), range + 1), leaders_.member(static_cast<int>(host))};
}

RecycledVector<SparsePacket> SparseLeader::own_packets(const std::byte* data) const {
  RecycledVector<SparsePacket> packets;
  for (int range = 0; range < hosts(); ++range) {
    const PacketSize& size = sizes_[static_cast<std::size_t>(range)];
    packets.push_back(packet_of(data, size, range, static_cast<std::size_t>(leaders_.position())));
    data += size.bytes;
  }
  return packets;
}

void SparseLeader::join_ranges() {
  const std::int64_t bytes = std::ssize(writer_.bytes());
  const Scratch written = scratch(bytes + kPacketSlack);
  copy_bytes(written.data(), writer_.bytes().data(), bytes);
  const RecycledVector<SparsePacket> packets = own_packets(written.data());
  PacketCursor all{std::span(packets)};
  writer_.clear();
  writer_.begin_packet(0);
  all.take_below(count_, [this](std::uint32_t index, float value) { writer_.add(index, value); });
  sizes_.assign(1, writer_.end_packet());
}

// --- Between the leaders ------------------------------------------------------------------------

template <class Action>
void SparseLeader::timed(std::int64_t received, const Action& action) {
  const auto start = std::chrono::steady_clock::now();
  const std::int64_t before = leaders_.wire().bytes_sent();
  action();
  const std::int64_t sent = leaders_.wire().bytes_sent() - before;
  const std::int64_t bytes = std::max(sent, received);  // who sends little waits for the others
  if (bytes < kTimed) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const double newest = took.count() / static_cast<double>(bytes);
  seconds_per_byte_ += kNewest * (newest - seconds_per_byte_);
}

template <class T>
RecycledVector<T> SparseLeader::gather_all(std::span<const T> own) {
  RecycledVector<T> all(own.size() * static_cast<std::size_t>(hosts()));
  const auto bytes = static_cast<std::int64_t>(all.size() * sizeof(T));
  const Scratch memory = scratch(bytes);
  all_gather(leaders_, std::as_bytes(own), {memory.data(), all.size() * sizeof(T)});
  copy_bytes(all.data(), memory.data(), bytes);
  return all;
}

PacketSizes SparseLeader::swap_all(const PacketSizes& own) {
  constexpr auto kEach = static_cast<std::int64_t>(sizeof(PacketSize));
  RecycledVector<std::int64_t> offsets;
  for (int host = 0; host <= hosts(); ++host) offsets.push_back(host * kEach);
  const Scratch leaving = scratch(offsets.back());
  const Scratch arrived = scratch(offsets.back());
  copy_bytes(leaving.data(), own.data(), offsets.back());
  all_to_all_v(leaders_, leaving.data(), offsets, arrived.data(), offsets);
  PacketSizes theirs(own.size());
  copy_bytes(theirs.data(), arrived.data(), offsets.back());
  return theirs;
}

SparsePlan SparseLeader::plan() {
  while (std::ssize(sizes_) < hosts()) next_range();

  Report own;
  own.seconds_per_byte = seconds_per_byte_;
  if (forced_) own.forced = static_cast<std::int32_t>(*forced_);
  for (const PacketSize& size : sizes_) own.packets.count += size.count;
  own.packets.bytes = std::ssize(writer_.bytes());
  own.sketch = writer_.sketch().summary();
  const RecycledVector<Report> reports = gather_all(std::span<const Report>(&own, 1));

  SparseTask task;
  task.count = count_;
  task.hosts = hosts();
  task.ranks = ranks_;
  RecycledVector<SparseSketch::Summary> sketches;
  for (std::size_t host = 0; host < reports.size(); ++host) {
    const Report& report = reports[host];
    check(report, count_, leaders_.member(static_cast<int>(host)));
    task.most_entries = std::max(task.most_entries, report.packets.count);
    task.most_bytes = std::max(task.most_bytes, report.packets.bytes);
    task.all_entries += report.packets.count;
    task.seconds_per_byte = std::max(task.seconds_per_byte, report.seconds_per_byte);
    sketches.push_back(report.sketch);
  }
  task.union_entries = std::clamp(estimate_union(sketches), static_cast<double>(task.most_entries),
                                  static_cast<double>(std::min(task.all_entries, task.count)));
  SparsePlan plan = plan_sparse(task);
  if (reports[0].forced >= 0) plan.algorithm = static_cast<SparseAlgorithm>(reports[0].forced);
  return plan;
}

/** In place: this leader's own stretch of `memory` is there. */
void SparseLeader::gather_packets(std::byte* memory, std::span<const std::int64_t> offsets) {
  const auto own = static_cast<std::size_t>(leaders_.position());
  const std::int64_t length = offsets[own + 1] - offsets[own];
  timed(offsets.back() - length, [&] { all_gather_v(leaders_, memory, offsets); });
}

Scratch SparseLeader::gather(PacketSizes& sizes) {
  const int ranges = gathered_ranges(hosts());
  if (ranges == 1) join_ranges();
  sizes = gather_all(std::span<const PacketSize>(sizes_));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::size_t host = i / static_cast<std::size_t>(ranges);
    const int range = static_cast<int>(i) % ranges;
    check_size({nullptr, sizes[i], sparse_range(count_, ranges, range),
                sparse_range(count_, ranges, range + 1), leaders_.member(static_cast<int>(host))});
  }
  const RecycledVector<std::int64_t> offsets = every(offsets_of(sizes), ranges);
  Scratch memory = scratch(offsets.back() + kPacketSlack);
  copy_bytes(memory.data() + offsets[static_cast<std::size_t>(leaders_.position())],
             writer_.bytes().data(), std::ssize(writer_.bytes()));
  gather_packets(memory.data(), offsets);
  return memory;
}

Scratch SparseLeader::split(PacketSizes& sizes) {
  const int own = leaders_.position();
  const auto range = static_cast<std::size_t>(own);
  const auto members = static_cast<std::size_t>(hosts());

  // Every host's packet of this leader's range.
  const PacketSizes arriving = swap_all(sizes_);
  for (std::size_t host = 0; host < members; ++host) {
    check_size(packet_of(nullptr, arriving[host], own, host));
  }
  const RecycledVector<std::int64_t> from = offsets_of(sizes_);
  const RecycledVector<std::int64_t> to = offsets_of(arriving);
  const Scratch leaving = scratch(from.back());
  copy_bytes(leaving.data(), writer_.bytes().data(), from.back());
  const Scratch arrived = scratch(to.back() + kPacketSlack);
  timed(to.back() - sizes_[range].bytes,
        [&] { all_to_all_v(leaders_, leaving.data(), from, arrived.data(), to); });

  // Their sum, in the order of the hosts.
  RecycledVector<SparsePacket> parts;
  for (std::size_t host = 0; host < members; ++host) {
    parts.push_back(packet_of(arrived.data() + to[host], arriving[host], own, host));
  }
  RecycledVector<PacketCursor> sources;
  for (const SparsePacket& part : parts) sources.emplace_back(std::span(&part, 1));
  writer_.clear();
  writer_.begin_packet(sparse_range(count_, hosts(), own));
  sum_sparse(std::span(sources), sparse_range(count_, hosts(), own + 1), block_,
             [this](std::uint32_t index, float value) { writer_.add(index, value); });
  const PacketSize sum = writer_.end_packet();

  sizes = gather_all(std::span(&sum, 1));
  for (std::size_t host = 0; host < members; ++host) {
    check_size(packet_of(nullptr, sizes[host], static_cast<int>(host), host));
  }
  const RecycledVector<std::int64_t> offsets = offsets_of(sizes);
  Scratch memory = scratch(offsets.back() + kPacketSlack);
  copy_bytes(memory.data() + offsets[range], writer_.bytes().data(), sum.bytes);
  gather_packets(memory.data(), offsets);
  return memory;
}

void SparseLeader::reduce_dense(float* out, std::int64_t divisor) {
  const RecycledVector<SparsePacket> packets = own_packets(writer_.bytes().data());
  PacketCursor own{std::span(packets)};
  sum_dense(std::span(&own, 1), out, 0, count_, 1);
  timed(0, [&] {  // as much is received as is sent
    all_reduce_.run_in_order(out, count_, DType::f32, {ReduceKind::sum, 1.0, divisor});
  });
}

// --- All ranks ----------------------------------------------------------------------------------

void HierarchicalTransport::sparse_all_reduce(const Call& call) {
  SparseStats stats;
  const std::int64_t before = bytes_between();
  meet(call, shm::Task::meet());
  compare_hosts();
  if (is_leader()) sparse_.begin(call.count);
  local_->merge_sparse(call.entries, call.count, [&](std::int64_t, std::int64_t end, auto parts) {
    if (is_leader()) sparse_.add(end, parts);
  });
  if (is_leader()) {
    const SparsePlan plan = sparse_.plan();
    stats.algorithm = plan.algorithm;
    log_plan(call.count, plan);
  }
  spread(View(&stats.algorithm, sizeof(stats.algorithm), DType::u8));

  stats.bytes_sent = local_->bytes_lent(call.entries);
  const std::int64_t divisor = combine_of(call.reduction, size()).divisor;
  if (stats.algorithm == SparseAlgorithm::dense) {
    sparse_dense(call.out, divisor, stats);
  } else {
    sparse_packets(call.out, divisor, stats);
  }
  stats.bytes_between = bytes_between() - before;
  stats.bytes_sent += stats.bytes_between;
  stats.density = density_of(stats.entries, call.count);
  if (call.stats != nullptr) *call.stats = stats;
}

/** The leader says how long the packets are, then passes them on; every rank adds them up. */
void HierarchicalTransport::sparse_packets(View out, std::int64_t divisor, SparseStats& stats) {
  const int hosts = layout_.host_count();
  const bool split = stats.algorithm == SparseAlgorithm::split;
  const int ranges = split ? hosts : gathered_ranges(hosts);
  PacketSizes sizes;
  Scratch memory(channel_->scratch(), 0);
  if (is_leader()) {
    memory = split ? sparse_.split(sizes) : sparse_.gather(sizes);
  }
  sizes.resize(static_cast<std::size_t>(split ? hosts : hosts * ranges));
  spread(View(sizes.data(), std::ssize(sizes) * static_cast<std::int64_t>(sizeof(PacketSize)),
              DType::u8));
  const std::int64_t bytes = offsets_of(sizes).back();
  if (!is_leader()) memory = packet_memory(*channel_, bytes + kPacketSlack, out.count);
  spread(View(memory.data(), bytes, DType::u8));
  if (is_leader() && local_size() > 1) stats.bytes_sent += bytes;
  stats.entries = sum_packets(sizes, ranges, memory.data(), layout_, static_cast<float*>(out.data),
                              out.count, divisor);
}

void HierarchicalTransport::sparse_dense(View out, std::int64_t divisor, SparseStats& stats) {
  auto* const sums = static_cast<float*>(out.data);
  if (is_leader()) {
    sparse_.reduce_dense(sums, divisor);
  }
  spread(out);
  if (is_leader() && local_size() > 1) stats.bytes_sent += out.bytes();
  stats.entries = entries_of(sums, out.count);
}

void HierarchicalTransport::log_plan(std::int64_t count, const SparsePlan& plan) {
  if (rank() != 0) return;
  const bool same = std::exchange(logged_plan_, plan.algorithm) == plan.algorithm;
  const LogLevel level = same ? LogLevel::debug : LogLevel::info;
  if (!log_enabled(level)) return;
  log(level, "sparse_all_reduce of " + std::to_string(count) + " elements: " + plan.describe());
}

}  // namespace tutti
