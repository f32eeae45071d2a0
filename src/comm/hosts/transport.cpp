// Collectives over several hosts, composed of those inside a host and those between hosts.
#include "comm/hosts/transport.hpp"

#include <algorithm>
#include <exception>
#include <functional>
#include <optional>
#include <utility>

#include "base/memory.hpp"
#include "base/recycled.hpp"
#include "comm/hosts/group/broadcast.hpp"
#include "comm/hosts/group/reduce.hpp"
#include "comm/hosts/stages.hpp"
#include "device/cpu/reduction.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

using shm::LocalGroup;
using shm::Task;
using shm::Wait;

/** What the ranks of this host know of a wait for ranks of others. */
Wait wait_of(Wire::Side side) {
  switch (side) {
    case Wire::Side::send:
      return Wait::send;
    case Wire::Side::recv:
      return Wait::recv;
    default:
      return Wait::collective;
  }
}

}  // namespace

HierarchicalTransport::Lane::Lane(Wire& wire, const Layout& layout, int rank)
    : group(wire, layout.lane_of(rank)),
      all_reduce(group, false, {layout.local_rank_of(rank), layout.largest_host()}),
      trials(fewest_in_lanes(layout.host_count(), layout.rank_count()), layout.largest_host()) {}

HierarchicalTransport::HierarchicalTransport(std::unique_ptr<mpi::Channel> channel, Layout layout,
                                             std::unique_ptr<shm::Local> local, mpi::Whole* whole)
    : channel_(std::move(channel)),
      layout_(std::move(layout)),
      local_(std::move(local)),
      signatures_(*local_),
      local_notes_(local_->group(), signatures_),
      mail_(local_->group()),
      messages_(channel_->size()),
      leaders_(*channel_, leaders()),
      agreement_(leaders_),
      all_reduce_(leaders_, layout_.largest_host() == 1),
      notes_(*channel_),
      sparse_(leaders_, all_reduce_, layout_.largest_host()) {
  local_->group().be_patient();
  // Each kind of wait also minds the other kind of peers.
  local_->group().set_idle([this](std::span<const int> names) {
    channel_->poll(names);
    look_at_notes();
  });
  local_->group().set_investigate(
      [this](std::span<const int> names) { return channel_->investigation(names); });
  channel_->set_heartbeat([this](int rank) -> std::optional<std::uint32_t> {
    if (layout_.host_of(rank) != host()) return std::nullopt;
    return local_->group().heartbeat_of(layout_.local_rank_of(rank));
  });
  const auto show_end = [this](Wire::Side side) { local_->group().end_elsewhere(wait_of(side)); };
  const auto connecting = [&](Wire::Side side) {
    local_->group().pulse_elsewhere(wait_of(side));
    local_->group().look_after_all();  // all of this host connect
    if (whole != nullptr) whole->look();
  };
  // The whole tells its ranks itself.
  const auto is_own = [whole] { return whole == nullptr || !whole->has_failed(); };
  channel_->set_idle({connecting, show_end});
  try {  // the ranks of this host go on, and wait for the leader
    channel_->set_hosts(layout_, whole);
    if (is_leader() && channel_->passes_on(leaders())) {
      local_->group().control().header().leaders_are_connected = true;
    }
  } catch (const PeerLost& error) {
    if (is_own()) tell(error);
    throw;
  } catch (const std::exception& error) {
    if (is_own()) abort(error.what());
    throw;
  }
  if (channel_->has_lane()) {
    lane_.emplace(*channel_, layout_, rank());
  }
  const auto waiting = [this](Wire::Side side) {
    try {
      local_->group().pulse_elsewhere(wait_of(side));
    } catch (const MismatchError&) {  // before messages are abandoned, as nobody is lost
      tell_failure(Witnesses::all);
      throw;
    }
    look_at_notes();
  };
  channel_->set_idle({waiting, show_end});
}

std::string HierarchicalTransport::describe() const {
  std::string sizes;
  for (int host = 0; host < layout_.host_count(); ++host) {
    sizes += (host == 0 ? "" : "+") + std::to_string(layout_.ranks_of(host).size());
  }
  return mpi::Session::library() + " between " + std::to_string(layout_.host_count()) + " hosts (" +
         sizes + " ranks), " + (channel_->has_streams() ? "TCP for collectives, " : "") +
         (channel_->is_fast() ? "a fast wire, " : "") + "shared memory inside" +
         (any_thread() ? "" : "; worker streams block, for want of MPI_THREAD_MULTIPLE");
}

bool HierarchicalTransport::any_thread() const { return channel_->session()->any_thread(); }
std::int64_t HierarchicalTransport::bytes_between() const { return channel_->bytes_sent(); }

std::vector<int> HierarchicalTransport::leaders() const {
  std::vector<int> leaders;
  for (int host = 0; host < layout_.host_count(); ++host) {
    leaders.push_back(layout_.ranks_of(host).front());
  }
  return leaders;
}

std::vector<int> HierarchicalTransport::agents(int root) const {
  std::vector<int> agents = leaders();
  agents[static_cast<std::size_t>(layout_.host_of(root))] = root;
  return agents;
}

std::vector<std::int64_t> HierarchicalTransport::host_offsets(
    const std::function<std::int64_t(int rank)>& length_of) const {
  std::vector<std::int64_t> offsets{0};
  for (int host = 0; host < layout_.host_count(); ++host) {
    offsets.push_back(offsets.back());
    for (const int rank : layout_.ranks_of(host)) offsets.back() += length_of(rank);
  }
  return offsets;
}

int HierarchicalTransport::local_agent(int root) const {
  return layout_.host_of(root) == host() ? layout_.local_rank_of(root) : 0;
}

void HierarchicalTransport::run(const Call& call) {
  const mpi::Channel::CallScope current;
  try {
    switch (call.operation) {
      case Operation::all_reduce:
        return all_reduce(call);
      case Operation::reduce:
        return reduce(call);
      case Operation::broadcast:
        return broadcast(call);
      case Operation::all_gather:
        return gather(call,
                      std::vector<std::int64_t>(static_cast<std::size_t>(size()), call.count));
      case Operation::all_gather_v:
        return gather(call, call.counts);
      case Operation::reduce_scatter:
      case Operation::reduce_scatter_v:
        return reduce_scatter(call);
      case Operation::scan:
      case Operation::exscan:
        return scan(call);
      case Operation::gather:
      case Operation::gather_v:
      case Operation::scatter:
      case Operation::scatter_v:
      case Operation::all_to_all:
      case Operation::all_to_all_v:
        return exchange_blocks(call);
      case Operation::sparse_all_reduce:
        return sparse_all_reduce(call);
      case Operation::barrier:
        return agree(call);
      case Operation::send:
      case Operation::recv:
      case Operation::exchange:
        return message(call);
      case Operation::allocate:
      case Operation::split:
      case Operation::group:
        break;  // have functions of their own
    }
    throw Error(std::string(name_of(call.operation)) + " is no operation to run");
  } catch (...) {
    tell_failure(call.is_message() ? Witnesses::two : Witnesses::all);
    throw;
  }
}

// --- Reductions ---------------------------------------------------------------------------------

void HierarchicalTransport::all_reduce(const Call& call) {
  const std::int64_t bytes = call.in.bytes();
  if (agreement_.carries(bytes, bytes)) return carried_all_reduce(call);
  if (can_go_in_lanes(bytes)) return all_reduce_by_trial(call);
  all_reduce_by_leaders(call, all_reduce_.goes_ahead(bytes));
}

void HierarchicalTransport::all_reduce_by_trial(const Call& call) {
  const std::int64_t bytes = call.in.bytes();
  Trials& trials = lane_->trials.of(bytes);
  const Trials::Trial trial = trials.next();
  const bool is_settled = trial.number == Trials::kSettled;
  if (trial.way == LaneTrials::kInLanes) {
    all_reduce_in_lanes(call);
  } else {  // what went ahead of the comparison, from which on trials are timed, would not count
    all_reduce_by_leaders(call, is_settled && all_reduce_.goes_ahead(bytes));
  }
  if (is_settled) return;
  trials.learn(trial.number, is_leader() ? lane_->trials.cost_of(bytes) : 0);
  if (!trials.are_over()) return;
  const bool faster = all_hosts(trials.best() == LaneTrials::kInLanes);
  trials.settle(faster ? LaneTrials::kInLanes : LaneTrials::kByLeaders);
}

void HierarchicalTransport::all_reduce_by_leaders(const Call& call, bool ahead) {
  const Stages stages = stages_of(call.reduction, call.dtype, layout_);
  const std::int64_t first = all_reduce_.first_segment(call.count, call.dtype);
  // Where a window goes ahead of the comparison, its segment is not yet written to outputs. What a
  // rank that is alone on its host brings travels from where it is.
  const bool adds = !all_reduce_.adds_from_elsewhere() || !brings_all(stages.inside);
  const bool keeps = ahead && adds && is_leader();
  const Scratch scratch(channel_->scratch(), keeps ? first * size_of(call.dtype) : 0);
  const auto inside = [&](std::int64_t begin, std::int64_t count) {
    const View sums =
        keeps && begin == 0 ? View(scratch.data(), count, call.dtype) : call.out.part(begin, count);
    return adds ? Task::reduce(call.in.part(begin, count), sums, stages.inside, 0) : Task::meet();
  };
  meet(call, inside(0, first));
  // The ranks of a host add up a segment, and take the results of another, while others travel.
  const auto add = [&](std::int64_t begin, std::int64_t count) {
    if (!adds) return;
    const Task task = inside(begin, count);
    if (begin > 0) local_->meet(task);
    local_->move(task);
  };
  const auto take = [&](std::int64_t begin, std::int64_t count) {
    spread(call.out.part(begin, count));
  };
  if (!ahead || !is_leader()) compare_hosts();
  if (!ahead && lane_) lane_->trials.start();
  if (is_leader()) {
    all_reduce_.run(call.out.data, call.count, call.dtype, stages.between,
                    {.before = std::cref(add),
                     .after = std::cref(take),
                     .agree = ahead ? comparison_of_hosts() : Agree(),
                     .first = keeps  ? scratch.data()
                              : adds ? nullptr
                                     : call.in.data,
                     .others = adds ? nullptr : call.in.data});
  } else {
    all_reduce_.accompany(call.count, call.dtype,
                          {.before = std::cref(add), .after = std::cref(take)});
  }
}

void HierarchicalTransport::all_reduce_in_lanes(const Call& call) {
  const Stages stages = stages_of(call.reduction, call.dtype, layout_);
  RecycledVector<std::int64_t> counts(static_cast<std::size_t>(local_size()));
  /** Of some elements, this rank's share; fills in `counts`. */
  const auto share = [&](std::int64_t begin, std::int64_t count) {
    const std::int64_t most = lane_->all_reduce.share_of_lane(count, call.count, call.dtype);
    for (int lane = 0; lane < local_size(); ++lane) {
      counts[static_cast<std::size_t>(lane)] =
          std::clamp<std::int64_t>(count - lane * most, 0, most);
    }
    const std::int64_t before = std::min(count, local_->rank() * most);
    return call.out.part(begin + before, counts[static_cast<std::size_t>(local_->rank())]);
  };
  const auto sum = [&](std::int64_t begin, std::int64_t count) {
    const View own = share(begin, count);
    return Task::reduce_scatter(call.in.part(begin, count), own, stages.inside, counts);
  };
  const auto add = [&](std::int64_t begin, std::int64_t count) {
    const Task task = sum(begin, count);
    if (begin > 0) local_->meet(task);
    local_->move(task);
  };
  const auto take = [&](std::int64_t begin, std::int64_t count) {
    const View own = share(begin, count);
    local_->run(Task::all_gather(own, call.out.part(begin, count), counts));
  };
  meet(call, sum(0, lane_->all_reduce.first_segment(call.count, call.dtype)));
  compare_hosts();
  lane_->trials.start();
  release();  // before outputs are written
  lane_->all_reduce.run(call.out.data, call.count, call.dtype, stages.between,
                        {.before = std::cref(add), .after = std::cref(take)});
}

void HierarchicalTransport::reduce(const Call& call) {
  if (reduces_one_way(leaders_, call.in.bytes())) return one_way_reduce(call);
  if (agreement_.carries(call.in.bytes(), call.in.bytes())) return carried_reduce(call);
  const Stages stages = stages_of(call.reduction, call.dtype, layout_);
  const int agent = local_agent(call.root);
  const bool adds = !brings_all(stages.inside);
  const bool needs_scratch = local_->rank() == agent && rank() != call.root;
  const Scratch scratch(channel_->scratch(), needs_scratch ? call.in.bytes() : 0);
  const View target = needs_scratch ? View(scratch.data(), call.count, call.dtype) : call.out;
  const Task inside = adds ? Task::reduce(call.in, target, stages.inside, agent) : Task::meet();
  meet(call, inside);
  compare_hosts();
  release();  // who only gives would go on, and not learn of a mismatch
  if (adds) local_->move(inside);
  if (local_->rank() == agent) {
    reduce_to(HostGroup(*channel_, agents(call.root)), layout_.host_of(call.root), target.data,
              call.count, call.dtype, stages.between, adds ? nullptr : call.in.data);
  }
}

void HierarchicalTransport::reduce_scatter(const Call& call) {
  const ConstView in = call.in;
  const Stages stages = stages_of(call.reduction, in.dtype, layout_);
  const std::int64_t width = size_of(in.dtype);
  std::vector<std::int64_t> starts{0};  // of the ranks' blocks, in elements
  for (int rank = 0; rank < size(); ++rank) {
    const std::int64_t count =
        call.counts.empty() ? call.count : call.counts[static_cast<std::size_t>(rank)];
    starts.push_back(starts.back() + count);
  }
  const auto block_of = [&](int rank) {
    const auto at = static_cast<std::size_t>(rank);
    return in.part(starts[at], starts[at + 1] - starts[at]);
  };

  ConstView sorted = in;  // the blocks host by host
  const Scratch permuted(channel_->scratch(), layout_.contiguous() ? 0 : in.bytes());
  if (!layout_.contiguous()) {
    std::byte* to = permuted.data();
    for (const int rank : layout_.by_host()) {
      const ConstView block = block_of(rank);
      copy_bytes(to, block.data, block.bytes());
      to += block.bytes();
    }
    sorted.data = permuted.data();
  }
  const Scratch sums(channel_->scratch(), is_leader() ? in.bytes() : 0);
  const Task inside = Task::reduce(sorted, View(sums.data(), in.count, in.dtype), stages.inside, 0);
  meet(call, inside);
  local_->move(inside);
  compare_hosts();

  const std::vector<std::int64_t> offsets =  // in elements
      host_offsets([&](int rank) { return block_of(rank).count; });
  const std::int64_t begin = offsets[static_cast<std::size_t>(host())];
  const std::int64_t own_count = offsets[static_cast<std::size_t>(host()) + 1] - begin;
  const Scratch own(channel_->scratch(), own_count * width);
  if (is_leader()) {
    reduce_scatter_v(leaders_, sums.data(), offsets, in.dtype, stages.between);
    copy_bytes(own.data(), sums.data() + begin * width, own_count * width);
  }
  spread(View(own.data(), own_count, in.dtype));
  const std::byte* from = own.data();
  for (const int rank : layout_.ranks_of(host())) {
    if (rank == this->rank()) break;
    from += block_of(rank).bytes();
  }
  copy_bytes(call.out.data, from, call.out.bytes());
}

// --- Movements ----------------------------------------------------------------------------------

void HierarchicalTransport::broadcast(const Call& call) {
  const View out = call.out;
  if (broadcasts_one_way(leaders_, out.bytes())) return one_way_broadcast(call);
  const int agent = local_agent(call.root);
  const auto keep_own = [&] {
    if (rank() == call.root) copy_bytes(out.data, call.in.data, call.in.bytes());
  };
  auto* const data = static_cast<std::byte*>(out.data);
  meet(call, Task::meet());
  if (layout_.local_rank_of(call.root) == 0 && is_leader()) {
    broadcast_from(leaders_, layout_.host_of(call.root), data, out.bytes(),
                   static_cast<const std::byte*>(call.in.data), [&](Ahead* ahead) {
                     compare_hosts(ahead);
                     keep_own();
                   });
    return spread(out);
  }
  compare_hosts();
  if (agent != 0) release();
  keep_own();
  if (local_->rank() == agent && layout_.local_rank_of(call.root) != 0) {
    broadcast_from(HostGroup(*channel_, agents(call.root)), layout_.host_of(call.root), data,
                   out.bytes());
  }
  spread(out, agent);
}

}  // namespace tutti
