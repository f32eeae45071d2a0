// Reads rings that are written meanwhile, and says what is in them.
#include "comm/record/flight.hpp"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/json.hpp"

namespace tutti::record {
namespace {

constexpr std::array<std::string_view, 5> kStateNames{"none", "running", "launched", "done",
                                                      "failed"};

std::string_view name_of(CallState state) { return kStateNames[static_cast<std::size_t>(state)]; }

/** Between the oldest of the ring's moments and now: all times in it are from then. */
TickScale scale_of(const Ring& ring) {
  const Anchor now = TickClock(ring.counts_ticks.load(std::memory_order_relaxed)).anchor();
  Anchor oldest = now;
  for (const Ring::Moment& moment : ring.moments) {
    const std::int64_t nanoseconds = moment.nanoseconds.load(std::memory_order_acquire);
    const std::uint64_t ticks = moment.ticks.load(std::memory_order_relaxed);
    if (nanoseconds != 0 && nanoseconds < oldest.nanoseconds) oldest = {ticks, nanoseconds};
  }
  return {oldest, now};
}

/** A copy of an entry; its number is 0 if it was written meanwhile. */
NotedCall read_call(const CallEntry& entry, const TickScale& scale) {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const auto time = [&](const std::atomic<std::uint64_t>& ticks) {
    const std::uint64_t value = ticks.load(kRelaxed);
    return value == 0 ? 0 : scale.nanoseconds(value);
  };
  NotedCall call;
  const std::uint64_t number = entry.number.load(std::memory_order_acquire);
  call.sequence = entry.sequence.load(kRelaxed);
  call.operation = static_cast<Operation>(entry.operation.load(kRelaxed));
  call.dtype = static_cast<DType>(entry.dtype.load(kRelaxed));
  call.reduction = static_cast<ReduceKind>(entry.reduction.load(kRelaxed));
  call.root = entry.root.load(kRelaxed);
  call.count = entry.count.load(kRelaxed);
  call.state = entry.state.load(kRelaxed);
  call.begun = time(entry.begun);
  call.ended = time(entry.ended);
  call.waited = scale.length(static_cast<std::int64_t>(entry.waited.load(kRelaxed)));
  std::atomic_thread_fence(std::memory_order_acquire);
  if (entry.number.load(kRelaxed) == number) call.number = number;
  return call;
}

/** "rank 3", "ranks 0 to 2, 5". */
std::string text_of(std::span<const int> ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    if (first > 0) text += ", ";
    text += std::to_string(ranks[first]);
    if (last > first) text += (last == first + 1 ? ", " : " to ") + std::to_string(ranks[last]);
    first = last + 1;
  }
  return text;
}

/** "2.345 s", "12.3 us": four digits or so. */
std::string duration_text(std::int64_t nanoseconds) {
  constexpr std::array<std::string_view, 4> kUnits{" ns", " us", " ms", " s"};
  auto value = static_cast<double>(std::max<std::int64_t>(nanoseconds, 0));
  std::size_t unit = 0;
  while (value >= 1000 && unit + 1 < kUnits.size()) {
    value /= 1000;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), value < 10 && unit > 0 ? "%.2f" : "%.0f", value);
  return text.data() + std::string(kUnits[unit]);
}

const NotedCall* last_of(const RankFlight& rank, Lane lane) {
  const auto last =
      std::find_if(rank.calls.rbegin(), rank.calls.rend(),
                   [&](const NotedCall& call) { return lane_of(call.operation) == lane; });
  return last == rank.calls.rend() ? nullptr : &*last;
}

std::uint64_t reached(const RankFlight& rank) {
  const NotedCall* last = last_of(rank, Lane::collective);
  return last == nullptr ? 0 : last->sequence;
}

std::string title(const NotedCall& call) {
  if (call.operation == Operation::exchange) {
    return "message " + std::to_string(call.sequence) + ": " + call.describe();
  }
  switch (lane_of(call.operation)) {
    case Lane::send:
      return "send " + std::to_string(call.sequence) + ": " + call.describe();
    case Lane::recv:
      return "recv " + std::to_string(call.sequence) + ": " + call.describe();
    case Lane::collective:
      break;
  }
  return "collective " + std::to_string(call.sequence) + ": " + call.describe();
}

/** How far a call has come, and how long it has been there: about most, "done" and "1.2 s ago". */
struct Standing {
  std::string_view before;
  std::int64_t time = 0;
  std::string_view after;
};

Standing standing(const NotedCall& call, std::int64_t now) {
  switch (call.state) {
    case CallState::none:
      break;
    case CallState::running:
      return {"in it for ", now - call.begun, ""};
    case CallState::launched:
      return {"launched ", now - call.ended, " ago"};
    case CallState::done:
      return {"done ", now - call.ended, " ago"};
    case CallState::failed:
      return {"failed after ", call.ended - call.begun, ""};
  }
  return {};
}

/** A line of the table: ranks that are equally far, and the longest of their times. */
struct Line {
  std::vector<int> ranks;
  std::string call;
  Standing standing;
  std::string_view condition;

  bool is_like(const Line& other) const {
    return call == other.call && standing.before == other.standing.before &&
           condition == other.condition;
  }
};

/** The lines of a rank: its last collective, and messages that are under way. */
std::vector<Line> lines_of(const RankFlight& rank, std::int64_t now) {
  std::vector<Line> lines;
  const NotedCall* last = last_of(rank, Lane::collective);
  lines.push_back({{rank.rank}, "no collective", {}, rank.condition});
  if (last != nullptr) {
    lines.front().call = title(*last);
    lines.front().standing = standing(*last, now);
  }
  for (const Lane lane : {Lane::send, Lane::recv}) {
    const NotedCall* message = last_of(rank, lane);
    if (message == nullptr || message->state == CallState::done) continue;
    lines.push_back({{rank.rank}, title(*message), standing(*message, now), ""});
  }
  return lines;
}

/** What the collectives of the ranks say about who is behind, in words. */
std::string behind(const Flight& flight) {
  std::uint64_t front = 0;
  for (const RankFlight& rank : flight.ranks) front = std::max(front, reached(rank));
  std::string text;
  std::vector<std::uint64_t> told;
  for (const RankFlight& rank : flight.ranks) {
    const std::uint64_t missed = reached(rank) + 1;
    if (missed > front || std::find(told.begin(), told.end(), missed) != told.end()) continue;
    told.push_back(missed);
    std::vector<int> late;
    std::string call;
    for (const RankFlight& other : flight.ranks) {
      if (reached(other) + 1 == missed) late.push_back(other.rank);
      for (const NotedCall& noted : other.calls) {
        if (call.empty() && lane_of(noted.operation) == Lane::collective &&
            noted.sequence == missed) {
          call = ", " + noted.describe();
        }
      }
    }
    text += "\n  " + text_of(late) + " had not reached collective " + std::to_string(missed) + call;
  }
  return text;
}

void write_call(JsonWriter& json, const NotedCall& call) {
  json.begin_object();
  json.member("number", call.number);
  json.member("sequence", call.sequence);
  json.member("operation", name_of(call.operation));
  json.member("dtype", name_of(call.dtype));
  json.member("count", call.count);
  if (reduces(call.operation)) json.member("reduction", name_of(call.reduction));
  if (call.root >= 0) {
    json.member(lane_of(call.operation) == Lane::collective ? "root" : "peer", call.root);
  }
  json.member("state", name_of(call.state));
  json.member("begun_ns", call.begun);
  json.member("ended_ns", call.ended);
  json.member("waited_ns", call.waited);
  json.end_object();
}

}  // namespace

std::string NotedCall::describe() const {
  std::string text = std::string(tutti::name_of(operation)) + '(';
  if (operation == Operation::allocate || operation == Operation::exchange) {
    text += std::to_string(count) + " bytes";
  } else if (has_elements(operation)) {
    text += std::string(tutti::name_of(dtype)) + ", count " + std::to_string(count);
    if (reduces(operation)) text += ", " + std::string(tutti::name_of(reduction));
    if (operation == Operation::send) {
      text += ", to rank " + std::to_string(root);
    } else if (operation == Operation::recv) {
      text += root < 0 ? ", from any source" : ", from rank " + std::to_string(root);
    } else if (root >= 0) {
      text += ", root " + std::to_string(root);
    }
  }
  return text + ')';
}

std::vector<NotedCall> read_calls(const Ring& ring) {
  const TickScale scale = scale_of(ring);
  std::vector<NotedCall> calls;
  for (const CallEntry& entry : ring.calls) {
    const NotedCall call = read_call(entry, scale);
    if (call.number != 0) calls.push_back(call);
  }
  std::sort(calls.begin(), calls.end(),
            [](const NotedCall& a, const NotedCall& b) { return a.number < b.number; });
  return calls;
}

std::string Flight::table() const {
  std::vector<Line> lines;
  for (const RankFlight& rank : ranks) {
    for (const Line& line : lines_of(rank, now)) {
      const auto like = std::find_if(lines.begin(), lines.end(),
                                     [&](const Line& other) { return other.is_like(line); });
      if (like == lines.end()) {
        lines.push_back(line);
      } else {
        like->ranks.push_back(rank.rank);
        like->standing.time = std::max(like->standing.time, line.standing.time);
      }
    }
  }
  std::size_t widest_ranks = 0;
  std::size_t widest_call = 0;
  for (const Line& line : lines) {
    widest_ranks = std::max(widest_ranks, text_of(line.ranks).size());
    widest_call = std::max(widest_call, line.call.size());
  }
  std::vector<int> all;
  for (const RankFlight& rank : ranks) all.push_back(rank.rank);
  std::string text =
      reason + "; the last calls of " + text_of(all) + " on " + host + ":" + behind(*this);
  for (const Line& line : lines) {
    std::string who = text_of(line.ranks);
    who.resize(widest_ranks, ' ');
    std::string call = line.call;
    call.resize(widest_call, ' ');
    std::string state(line.standing.before);
    if (!state.empty()) state += duration_text(line.standing.time);
    state += line.standing.after;
    if (!state.empty() && !line.condition.empty()) state += "; ";
    state += line.condition;
    text += "\n  ";
    text += who;
    text += "  ";
    text += call;
    text += "  ";
    text += state;
    text.erase(text.find_last_not_of(' ') + 1);
  }
  return text;
}

std::string Flight::json() const {
  JsonWriter json;
  json.begin_object();
  json.member("version", 1);
  json.member("reason", reason);
  json.member("host", host);
  json.member("communicator", communicator);
  json.member("world_size", world_size);
  json.member("now_ns", now);
  json.member("unix_time_ns", unix_time);
  json.begin_array("ranks");
  for (const RankFlight& rank : ranks) {
    json.begin_object();
    json.member("rank", rank.rank);
    json.member("process", rank.process);
    json.member("condition", rank.condition);
    json.member("reached", reached(rank));
    json.begin_array("calls");
    for (const NotedCall& call : rank.calls) write_call(json, call);
    json.end_array();
    json.end_object();
  }
  json.end_array();
  json.end_object();
  return json.text() + "\n";
}

}  // namespace tutti::record
