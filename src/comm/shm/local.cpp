// How the ranks of a host come to a task, and what they find out about each other.
#include "comm/shm/local.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/memory.hpp"

namespace tutti::shm {
namespace {

using Clock = std::chrono::steady_clock;

// Bytes for which single copies come into question.
constexpr std::int64_t kFewestPulled = std::int64_t{64} * 1024;

}  // namespace

Local::Local(const UniqueId& id, int rank, std::vector<int> names,
             std::chrono::milliseconds timeout, std::optional<Participants> participants)
    : group_(id, rank, std::move(names), timeout, std::move(participants)),
      symmetric_(rank),
      single_copy_(group_.control(), rank, group_.size()),
      inputs_(static_cast<std::size_t>(group_.size())),
      outputs_(inputs_.size()) {
  // Threads of one process have one view of its memory: there nothing can be kept from them.
  if (!group_.is_one_process()) group_.set_on_failure([this] { symmetric_.isolate(); });
}

// --- Meeting ------------------------------------------------------------------------------------

bool Local::arrive(std::optional<std::uint32_t> stamp) {
  const std::uint32_t own = stamp.value_or(0);
  arrival_of(rank()).stamp = own;
  group_.come(meetings_);
  group_.wait_for_arrivals(meetings_,
                           stamp ? LocalGroup::Waited::for_arrival : LocalGroup::Waited::for_data);
  for (int peer = 0; peer < size(); ++peer) {
    if (arrival_of(peer).stamp != own) return false;
  }
  return true;
}

void Local::bring(const Task& task) {
  const std::int64_t bytes = task.gives(rank()) ? task.in.bytes() : 0;
  if (met_.line) {
    // The line is written in one go, or a watcher would take it away in between.
    auto& data = arrival_of(rank()).data;
    data.fill(std::byte{0});  // see reduce_lines()
    copy_bytes(data.data(), task.in.data, bytes);
    group_.journal().went(record::Lane::collective, "one line");
  } else {
    copy_bytes(staging_of(rank()).small[meetings_ & 1U].data(), task.in.data, bytes);
    last_way_ = Choices::kPlainShot;
    group_.journal().went(record::Lane::collective, name_of(Kind::one_shot));
  }
}

bool Local::meet(const Task& task, std::optional<std::uint32_t> stamp) {
  group_.check_failure();
  ++meetings_;
  met_ = {};
  met_.line = task.bytes <= Arrival::kData;
  if (met_.line || choices_.brief(task.bytes)) {
    bring(task);
    return arrive(stamp);
  }
  if (task.bytes <= Choices::kOneShot) {
    met_.early = true;
    met_.choice = choices_.before(task.kind, task.bytes);
    if (met_.is(Kind::one_shot)) {
      const bool timed = met_.is_trial();
      const auto start = timed ? Clock::now() : Clock::time_point();
      if (task.gives(rank())) {
        cpu::copy(staging_of(rank()).small[meetings_ & 1U].data(), task.in.data, task.in.bytes(),
                  met_.way().streamed);
      }
      if (timed) met_.spent = Clock::now() - start;
    }
  }
  const Request own = describe(task);
  std::memcpy(arrival_of(rank()).data.data(), &own, sizeof own);
  if (!arrive(stamp)) return false;
  examine(own);
  decide(task);
  return true;
}

Request Local::describe(const Task& task) {
  Request request;
  // Who gives nothing shows where it takes: memory that all have mapped is in one allocation.
  request.in = task.gives(rank()) ? symmetric_.locate(task.in.data, task.in.bytes())
                                  : symmetric_.locate(task.out.data, task.out.bytes());
  if (task.kind == TaskKind::all_reduce) {
    request.out = symmetric_.locate(task.out.data, task.out.bytes());
  }
  request.in_address = reinterpret_cast<std::uintptr_t>(task.in.data);
  request.out_address = reinterpret_cast<std::uintptr_t>(task.out.data);
  request.in_place = task.in.data == task.out.data ? 1 : 0;
  const bool may_pull = task.bytes >= kFewestPulled && meetings_ > 1;
  request.reaches_all = may_pull && single_copy_.reaches_all() ? 1 : 0;
  request.cost = choices_.noted();
  return request;
}

Request Local::request_of(int peer) const {
  Request request;
  std::memcpy(&request, arrival_of(peer).data.data(), sizeof request);
  return request;
}

void Local::examine(const Request& own) {
  met_.direct_in = own.in.region != Location::kPrivate || size() == 1;
  met_.direct_out = own.out.region != Location::kPrivate || size() == 1;
  met_.reaches_all = own.reaches_all != 0;
  std::uint32_t slowest = 0;
  for (int peer = 0; peer < size(); ++peer) {
    const Request other = request_of(peer);
    met_.direct_in = met_.direct_in && other.in.region == own.in.region;
    met_.direct_out = met_.direct_out && other.out.region == own.out.region;
    met_.any_in_place = met_.any_in_place || other.in_place != 0;
    met_.reaches_all = met_.reaches_all && other.reaches_all != 0;
    slowest = std::max(slowest, other.cost);
  }
  choices_.learn(slowest);
}

void Local::decide(const Task& task) {
  Choices::Allowed allowed{met_.direct_in, met_.reaches_all};
  if (task.kind == TaskKind::all_reduce) {
    // A rank that works in place and alone would overwrite an input that others still read.
    allowed.direct = met_.direct_in && (met_.direct_out || !met_.any_in_place);
  } else if (task.kind == TaskKind::all_to_all && met_.any_in_place) {
    // An output overwrites an input that others still have to read: not if it is staged.
    allowed = {};
  }
  met_.choice = choices_.after(task.kind, task.bytes, allowed, met_.early ? &met_.choice : nullptr);
  last_way_ = met_.choice.way;
  group_.journal().went(record::Lane::collective, name_of(last_way_.kind));
  if (met_.is_trial()) met_.began = Clock::now() - met_.spent;
}

void Local::move(const Task& task) {
  if (task.kind != TaskKind::meet) {
    if (!task.combines()) take_own(task);
    const auto way = ways_of(task.kind)[static_cast<std::size_t>(met_.way().kind)];
    (this->*way)(task);
  }
  end();
}

void Local::finish_reading() {
  group_.check_reads();
  group_.synchronise();
}

void Local::end() {
  group_.check_own_loss();
  if (!met_.is_trial()) return;
  const auto spent = std::chrono::nanoseconds(Clock::now() - met_.began).count();
  choices_.note(met_.choice, static_cast<std::uint32_t>(std::min<std::int64_t>(spent, UINT32_MAX)));
}

// --- Reaching the others' memory ----------------------------------------------------------------

void Local::find_inputs(const Task& task, std::int64_t offset) {
  for (int peer = 0; peer < size(); ++peer) {
    if (!task.gives(peer)) continue;
    const std::byte* start = nullptr;
    if (peer == rank()) {
      start = static_cast<const std::byte*>(task.in.data);
    } else if (met_.line) {
      start = arrival_of(peer).data.data();
    } else if (met_.small()) {
      start = staging_of(peer).small[meetings_ & 1U].data();
    } else {
      start = symmetric_.resolve(peer, request_of(peer).in);
    }
    inputs_[static_cast<std::size_t>(peer)] = start + offset;
  }
}

void Local::find_pieces(std::size_t slot, std::int64_t offset, const void* own) {
  for (int peer = 0; peer < size(); ++peer) {
    inputs_[static_cast<std::size_t>(peer)] = staging_of(peer).in[slot].data() + offset;
  }
  inputs_[static_cast<std::size_t>(rank())] = own;
}

void Local::pull_inputs(const Task& task, std::int64_t offset, std::int64_t count) {
  const std::int64_t width = task.width();
  pulled_.resize(static_cast<std::size_t>(size() * met_.way().piece));
  for (int peer = 0; peer < size(); ++peer) {
    const auto at = static_cast<std::size_t>(peer);
    if (peer == rank()) {
      inputs_[at] = task.in.part(offset, count).data;
      continue;
    }
    std::byte* target = pulled_.data() + peer * met_.way().piece;
    const auto moved = static_cast<std::uint64_t>(offset * width);
    pull_from(peer, target, request_of(peer).in_address + moved, count * width);
    inputs_[at] = target;
  }
}

void Local::pull_from(int peer, void* to, std::uint64_t address, std::int64_t bytes) {
  if (bytes == 0) return;
  const int error = single_copy_.read(peer, to, address, bytes);
  if (error == 0) return;
  group_.check_failure();  // it freed the memory because of a failure that it has told
  if (error == ESRCH) group_.lose(peer, "its process has ended", Ended::yes);
  group_.lose(peer, "its memory cannot be read");
}

}  // namespace tutti::shm
