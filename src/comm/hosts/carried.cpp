// Collectives over several hosts that are so short that they go along with the signatures, or
// behind notes that nobody answers; gathers.
#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>

#include "base/memory.hpp"
#include "comm/hosts/group/movements.hpp"
#include "comm/hosts/stages.hpp"
#include "comm/hosts/transport.hpp"

namespace tutti {

using shm::Task;

namespace {

std::span<const std::byte> carried_bytes(const ConstView& view) {
  return {static_cast<const std::byte*>(view.data), static_cast<std::size_t>(view.bytes())};
}

std::span<std::byte> bytes_of(const View& view) {
  return {static_cast<std::byte*>(view.data), static_cast<std::size_t>(view.bytes())};
}

/** A root that sends one broadcast after the other looks at what others ask of it once in so many.
 */
constexpr std::uint64_t kCallsBetweenLooks = 16;

/** Adds up what the hosts have brought. */
auto adding(const View& out, const cpu::Combine& combine) {
  return [out, combine](std::span<const void* const> parts) {
    void* target = out.data;
    cpu::reduce(std::span(&target, 1), parts, out.count, out.dtype, combine);
  };
}

}  // namespace

void HierarchicalTransport::carried_all_reduce(const Call& call) {
  const Stages stages = stages_of(call.reduction, call.dtype, layout_);
  const auto add = adding(call.out, stages.between);
  if (brings_all(stages.inside)) {
    meet(call, Task::meet());
    compare_hosts({carried_bytes(call.in), call.in.bytes()}, call.out, std::cref(add));
    return spread(call.out);
  }
  const Scratch scratch(channel_->scratch(), is_leader() ? call.in.bytes() : 0);
  const View sums(scratch.data(), call.count, call.dtype);
  const Task inside = Task::reduce(call.in, sums, stages.inside, 0);
  meet(call, inside);
  local_->move(inside);
  compare_hosts({carried_bytes(sums), call.in.bytes()}, call.out, std::cref(add));
  spread(call.out);
}

void HierarchicalTransport::carried_reduce(const Call& call) {
  const Stages stages = stages_of(call.reduction, call.dtype, layout_);
  const Scratch scratch(channel_->scratch(), is_leader() ? call.in.bytes() : 0);
  const Scratch result(channel_->scratch(), call.in.bytes());
  const View sums(scratch.data(), call.count, call.dtype);
  const View total(result.data(), call.count, call.dtype);
  const Task inside = Task::reduce(call.in, sums, stages.inside, 0);
  meet(call, inside);
  local_->move(inside);
  const auto add = adding(total, stages.between);
  compare_hosts({carried_bytes(sums), call.in.bytes()}, total, std::cref(add));
  if (layout_.host_of(call.root) != host()) return release();
  spread(total);
  if (rank() == call.root) copy_bytes(call.out.data, total.data, total.bytes());
}

void HierarchicalTransport::one_way_broadcast(const Call& call) {
  const View out = call.out;
  const int from = layout_.host_of(call.root);
  const bool is_root = rank() == call.root;
  // Without connections the root itself sends, whether it is its host's leader or not.
  const bool leads = layout_.local_rank_of(call.root) == 0 || leaders_pass_on(out.bytes());
  std::optional<HostGroup> with_root;
  if (!leads && (is_root || (from != host() && is_leader()))) {
    with_root.emplace(*channel_, agents(call.root));
  }
  const bool takes = from != host() && is_leader();
  const bool goes_on = signature_.operation == Operation::broadcast && goes_one_way(signature_) &&
                       signature_.root == call.root;
  in_a_row_ = goes_on ? in_a_row_ + 1 : 0;
  const OneWayCall between = one_way_of(call, with_root ? *with_root : leaders_);
  const int giver = takes ? between.giver() : Notes::kNobody;
  sign(call, std::span(&giver, takes ? 1 : 0));
  if (local_size() > 1 && out.bytes() <= shm::LocalNotes::kMost) return pass_note(call, between);
  if (from == host()) {
    if (is_root) send_one_way(between, call.in, journal()->absence());
    if (local_size() == 1) {
      local_->group().check_failure();
    } else {
      const Task inside = Task::spread(call.in, out, layout_.local_rank_of(call.root));
      come(inside);
      local_->move(inside);
    }
    if (is_root) copy_bytes(out.data, call.in.data, out.bytes());
    return local_->group().check_own_loss();
  }
  come(Task::meet());
  delay_unknown_ = !is_leader();
  if (is_leader()) take_one_way(call, between, bytes_of(out));
  spread(out);
}

void HierarchicalTransport::one_way_reduce(const Call& call) {
  const int to = layout_.host_of(call.root);
  RecycledVector<int> givers;
  for (int host = 0; to == this->host() && is_leader() && host < layout_.host_count(); ++host) {
    if (host != to) givers.push_back(leaders_.member(host));
  }
  sign(call, givers);
  const Stages stages = stages_of(call.reduction, call.dtype, layout_);
  if (brings_all(stages.inside)) {
    local_->group().check_failure();
    reduce_between(call, call.in, call.out.data, journal()->absence());
    return local_->group().check_own_loss();
  }
  if (call.in.bytes() <= shm::LocalNotes::kMost) return reduce_notes(call);
  const bool is_led = to == host() && layout_.local_rank_of(call.root) != 0;
  const Scratch scratch(channel_->scratch(), is_leader() ? call.in.bytes() : 0);
  const Scratch result(channel_->scratch(), is_led ? call.in.bytes() : 0);
  const View sums(scratch.data(), call.count, call.dtype);
  const View total(is_led ? result.data() : call.out.data, call.count, call.dtype);
  const Task inside = Task::reduce(call.in, sums, stages.inside, 0);
  come(inside);
  local_->move(inside);
  if (is_leader()) reduce_between(call, sums, total.data, journal()->absence());
  if (!is_led) return local_->group().check_own_loss();
  delay_unknown_ = !is_leader();
  spread(total);
  if (rank() == call.root) copy_bytes(call.out.data, total.data, total.bytes());
}

void HierarchicalTransport::reduce_notes(const Call& call) {
  const std::int64_t bytes = call.in.bytes();
  const bool is_led = shares_host(call.root) && layout_.local_rank_of(call.root) != 0;
  if (is_leader()) {
    const Stages stages = stages_of(call.reduction, call.dtype, layout_);
    RecycledVector<const void*> parts(static_cast<std::size_t>(local_size()));
    const Scratch scratch(channel_->scratch(), bytes);
    void* sums = scratch.data();
    record::Absence absence = local_notes_.collect(parts);
    if (journal()->absence().until > absence.until) absence = journal()->absence();
    parts.front() = call.in.data;
    cpu::reduce(std::span(&sums, 1), parts, call.count, call.dtype, stages.inside);
    local_notes_.release();
    void* const total = is_led ? local_notes_.make_room(bytes).data() : call.out.data;
    reduce_between(call, View(sums, call.count, call.dtype), total, absence);
    if (is_led) local_notes_.leave({});
  } else {
    copy_bytes(local_notes_.make_room(bytes).data(), call.in.data, bytes);
    local_notes_.leave(journal()->absence());
    if (is_led && rank() == call.root) {
      local_notes_.read(0, bytes_of(call.out), call.root);
      local_->group().share_wait_between(sequence_, 0);
    } else if (is_led) {
      local_notes_.pass_over();
    }
  }
  local_->group().check_own_loss();
}

void HierarchicalTransport::reduce_between(const Call& call, const ConstView& sums, void* total,
                                           const record::Absence& absence) {
  if (!shares_host(call.root)) return send_one_way(one_way_of(call, leaders_), sums, absence);
  const View out(total, call.count, call.dtype);
  const auto add = adding(out, stages_of(call.reduction, call.dtype, layout_).between);
  const std::uint64_t since = journal()->now();
  const OneWayCall::Latest latest =
      one_way_of(call, leaders_).collect(notes_, carried_bytes(sums), std::cref(add));
  local_->group().note_wait_for(sequence_, latest.rank, since, latest.away);
}

void HierarchicalTransport::send_one_way(const OneWayCall& between, const ConstView& data,
                                         const record::Absence& absence) {
  if (sequence_ % kCallsBetweenLooks == 0) look_at_notes();  // it may never wait for anybody
  const auto away = journal()->length_of(absence);
  between.send(notes_, carried_bytes(data),
               std::chrono::duration_cast<std::chrono::microseconds>(away));
}

record::Absence HierarchicalTransport::take_one_way(const Call& call, const OneWayCall& between,
                                                    std::span<std::byte> data) {
  const std::uint64_t since = journal()->now();
  const auto away = between.take(notes_, data);
  return local_->group().note_wait_for(sequence_, call.root, since, away);
}

void HierarchicalTransport::pass_note(const Call& call, const OneWayCall& between) {
  const View out = call.out;
  const int author = local_agent(call.root);
  const bool passes_on = leaders_pass_on(out.bytes());
  if (local_->rank() != author) {
    const record::Absence absence = local_notes_.read(author, bytes_of(out), call.root);
    if (is_leader() && passes_on) {
      // Whom a leader has kept waiting after the root had come is not kept waiting by the root.
      const bool came_later = journal()->absence().until > absence.until;
      send_one_way(between, out, came_later ? record::Absence{} : absence);
    }
  } else if (rank() == call.root) {
    const bool sends = is_leader() || !passes_on;
    const auto send = [&] { send_one_way(between, call.in, journal()->absence()); };
    // Data that follow a note may have to wait for who takes them, for which its own host does not.
    const bool follow = out.bytes() > Notes::kCarried;
    if (sends && !follow) send();
    copy_bytes(local_notes_.make_room(out.bytes()).data(), call.in.data, out.bytes());
    local_notes_.leave(journal()->absence());
    if (sends && follow) send();
    copy_bytes(out.data, call.in.data, out.bytes());
  } else {
    // After a failure they may still come, when the memory of the host's notes is gone.
    const Scratch following(channel_->scratch(), out.bytes() > Notes::kCarried ? out.bytes() : 0);
    const std::span<std::byte> data = local_notes_.make_room(out.bytes());
    std::byte* taken = out.bytes() > Notes::kCarried ? following.data() : data.data();
    const record::Absence absence = take_one_way(call, between, {taken, data.size()});
    if (taken != data.data()) copy_bytes(data.data(), taken, out.bytes());
    local_notes_.leave(absence);
    copy_bytes(out.data, data.data(), out.bytes());
  }
  local_->group().check_own_loss();
}

void HierarchicalTransport::gather(const Call& call, std::span<const std::int64_t> counts) {
  const ConstView in = call.in;
  const View out = call.out;
  const std::int64_t width = size_of(in.dtype);
  const auto bytes_from = [&](int rank) { return counts[static_cast<std::size_t>(rank)] * width; };
  const Scratch scratch(channel_->scratch(), layout_.contiguous() ? 0 : out.bytes());
  std::byte* sorted = layout_.contiguous() ? static_cast<std::byte*>(out.data) : scratch.data();

  const std::vector<std::int64_t> offsets = host_offsets(bytes_from);
  std::vector<std::int64_t> local_counts;
  for (const int rank : layout_.ranks_of(host())) {
    local_counts.push_back(counts[static_cast<std::size_t>(rank)]);
  }
  const auto length_of = [&](int host) {
    return offsets[static_cast<std::size_t>(host) + 1] - offsets[static_cast<std::size_t>(host)];
  };
  std::int64_t longest = 0;
  for (int host = 0; host < layout_.host_count(); ++host) {
    longest = std::max(longest, length_of(host));
  }
  const bool carried = agreement_.carries(longest, out.bytes());
  const bool ahead = !carried && gathers_ahead(leaders_, out.bytes());
  // What a rank that is alone on its host brings travels from where it is.
  const bool alone = local_size() == 1 && (!carried || in.bytes() == longest);
  const bool keeps = (carried || ahead) && !alone;  // until outputs may be written
  const Scratch block(channel_->scratch(), keeps && is_leader() ? longest : 0);
  const View own(keeps ? block.data() : sorted + offsets[static_cast<std::size_t>(host())],
                 length_of(host()) / width, in.dtype);
  const auto* const brought = static_cast<const std::byte*>(alone ? in.data : own.data);
  const Task inside = alone ? Task::meet() : Task::gather(in, own, local_counts, 0);
  meet(call, inside);
  if (keeps) local_->move(inside);
  if (carried) {
    const auto place = [&](std::span<const void* const> parts) {
      for (int host = 0; host < layout_.host_count(); ++host) {
        const auto at = static_cast<std::size_t>(host);
        copy_bytes(sorted + offsets[at], parts[at], length_of(host));
      }
    };
    compare_hosts({{brought, static_cast<std::size_t>(longest)}, longest},
                  View(sorted, out.bytes(), DType::u8), std::cref(place));
  } else if (ahead && is_leader()) {
    gather_ahead(leaders_, sorted, offsets, brought, comparison_of_hosts());
  } else {
    compare_hosts();
    if (!alone && !ahead) local_->move(inside);
    if (is_leader()) all_gather_v(leaders_, sorted, offsets, brought);
  }
  spread(View(sorted, out.count, out.dtype));
  if (!layout_.contiguous()) put_by_rank(sorted, counts, out);
}

void HierarchicalTransport::put_by_rank(const std::byte* sorted,
                                        std::span<const std::int64_t> counts, View out) const {
  std::vector<std::int64_t> begins(counts.size(), 0);  // in elements
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), std::int64_t{0});
  for (const int rank : layout_.by_host()) {
    const auto at = static_cast<std::size_t>(rank);
    const View block = out.part(begins[at], counts[at]);
    copy_bytes(block.data, sorted, block.bytes());
    sorted += block.bytes();
  }
}

}  // namespace tutti
