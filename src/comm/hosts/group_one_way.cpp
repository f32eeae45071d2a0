// Broadcasts and reductions that go one way: a note from the root, or to it, and what does not fit
// into it behind.
#include <algorithm>
#include <bit>

#include "base/memory.hpp"
#include "comm/hosts/group.hpp"

namespace tutti {
namespace {

/** So many members get notes of the root itself: more take less time if those who have it help. */
constexpr int kMostOfRoot = 3;
/** But from so many in a row on two of three do. */
constexpr int kRow = 2;
/** Data of so many bytes take longer from the root to all others than from each to the next one, on
 * a wire that is not fast. */
constexpr std::int64_t kRowOfData = std::int64_t{6} * 1024;
/** What three or more members bring to a root on a wire that is not fast: more takes longer than
 * the rounds in which all add up shares. */
constexpr std::int64_t kMostBrought = std::int64_t{32} * 1024;

/** In a binomial tree of `size` positions below 0, the children of `position`, the one with the
 * most below it first. */
template <class Child>
void for_each_child(int position, int size, const Child& child) {
  const int lowest = position == 0 ? static_cast<int>(std::bit_ceil(static_cast<unsigned>(size)))
                                   : position & -position;
  for (int distance = lowest / 2; distance > 0; distance /= 2) {
    if (position + distance < size) child(position + distance);
  }
}

}  // namespace

bool HostGroup::goes_one_way(std::int64_t bytes) const {
  constexpr std::int64_t kMost = std::int64_t{64} * 1024;
  if (size() > kCentred) return bytes <= Notes::kCarried;
  return bytes <= (size() == 2 ? 2 * kMost : kMost);
}

/** The root's link takes what all bring: of more than that, or on a wire that is not fast, shares
 * that all add up take less time. */
bool HostGroup::reduces_one_way(std::int64_t bytes) const {
  if (size() > kCentred) return false;
  if (size() == 2) return goes_one_way(bytes);
  return bytes * (size() - 1) <= (wire_.is_fast() ? kSmallNoted : kMostBrought);
}

HostGroup::Route HostGroup::route_of(const OneWay& call) const {
  if (call.direction == Direction::to_root) return Route::to_root;
  if (call.bytes <= Notes::kCarried) {
    if (size() > kMostOfRoot) return Route::tree;
    return size() == kMostOfRoot && call.in_a_row >= kRow ? Route::row : Route::from_root;
  }
  if (size() == 2) return Route::from_root;
  const bool is_small = call.bytes * (size() - 1) <= kSmallNoted;
  if (!is_chain()) return is_small ? Route::from_root : Route::shares;
  return call.bytes < kRowOfData || (is_small && wire_.is_fast()) ? Route::from_root : Route::row;
}

int HostGroup::giver_of(const OneWay& call) const {
  const int own = (position_ - call.root + size()) % size();
  switch (route_of(call)) {
    case Route::tree:
      return (call.root + (own & (own - 1))) % size();
    case Route::row:
      return peer(size() - 1);
    default:
      return call.root;
  }
}

template <class Taker>
void HostGroup::for_each_taker(const OneWay& call, const Taker& taker) const {
  const int own = (position_ - call.root + size()) % size();
  const auto take = [&](int position) { taker((call.root + position) % size()); };
  switch (route_of(call)) {
    case Route::tree:
      return for_each_child(own, size(), take);
    case Route::row:
      if (own + 1 < size()) take(own + 1);
      return;
    case Route::to_root:
      return take(0);
    default:
      for (int other = 1; own == 0 && other < size(); ++other) take(other);
  }
}

void HostGroup::pass_note(const OneWay& call, Batch& batch, std::span<const std::byte> note) {
  for_each_taker(call, [&](int member) { send(batch, note, member); });
}

/** So they leave in one call of the kernel. A taker that makes another call of those finds out by
 * itself; one that does not has the root's data then, whatever call this member makes. */
void HostGroup::pass_notes(const OneWay& call, Batch& batch, Notes& notes,
                           std::span<const std::byte> note) {
  int takers = 0;
  for_each_taker(call, [&](int /*member*/) { ++takers; });
  if (takers == 0) return;
  Notes::Next next = notes.next(note.data());
  if (next.batch == nullptr) return pass_note(call, batch, note);
  const Held together(wire_);
  pass_note(call, batch, note);
  for (; next.batch != nullptr; next = notes.next(next.note.data())) {
    pass_note(call, *next.batch, next.note);
  }
}

void HostGroup::send_one_way(const OneWay& call, Notes& notes, std::span<const std::byte> data,
                             std::chrono::microseconds away) {
  const bool follows = std::ssize(data) > Notes::kCarried;
  const Scratch memory(wire_.scratch(), Wire::kShort);
  const std::int64_t bytes =
      notes.write(memory.data(), follows ? std::span<const std::byte>() : data, away);
  const std::span<const std::byte> note(memory.data(), static_cast<std::size_t>(bytes));
  if (follows && route_of(call) != Route::shares) return send_together(call, note, data);
  Batch batch(wire_, Wire::Traffic::note);
  pass_note(call, batch, note);
  if (follows) {  // it is only read
    broadcast_shares(const_cast<std::byte*>(data.data()), std::ssize(data), position_, data.data(),
                     {}, Wire::Traffic::noted);
  }
  batch.wait();
}

std::chrono::microseconds HostGroup::take_one_way(const OneWay& call, Notes& notes,
                                                  std::span<std::byte> data) {
  const bool follows = std::ssize(data) > Notes::kCarried;
  const Scratch memory(wire_.scratch(), Wire::kShort);
  const std::int64_t bytes = notes.wait(memory.data()).bytes;
  const std::span<const std::byte> note(memory.data(), static_cast<std::size_t>(bytes));
  Batch batch(wire_, Wire::Traffic::note);
  if (follows && route_of(call) == Route::shares) {
    broadcast_shares(data.data(), std::ssize(data), call.root, data.data(), {},
                     Wire::Traffic::noted);
    notes.look();  // of another root some of the data may be that others have passed on
  } else if (follows) {
    take_together(call, note, data);
  } else {
    if (!notes.is_passed_on()) pass_notes(call, batch, notes, note);
    copy_bytes(data.data(), Notes::carried_by(note.data()), std::ssize(data));
  }
  notes.is_passed_on() ? notes.wait_until_passed_on() : batch.wait();
  return Notes::away_in(note.data());
}

HostGroup::Latest HostGroup::collect_one_way(const OneWay& call, Notes& notes,
                                             std::span<const std::byte> own, const Merge& merge) {
  constexpr std::int64_t kRoom = (Wire::kShort + kCacheLine - 1) / kCacheLine * kCacheLine;
  const bool follows = call.bytes > Notes::kCarried;
  const std::int64_t room =
      std::max(kRoom, (call.bytes + kCacheLine - 1) / kCacheLine * kCacheLine);
  const Scratch memory(wire_.scratch(), room * (size() - 1));
  RecycledVector<const void*> parts(members_.size());
  parts[static_cast<std::size_t>(position_)] = own.data();
  Latest latest{};
  for (int number = 0; number + 1 < size(); ++number) {
    std::byte* const note = memory.data() + number * room;
    latest.rank = notes.wait(note).source;
    latest.away = Notes::away_in(note);
    const auto at = static_cast<std::size_t>(position_of(latest.rank));
    parts[at] = follows ? note : Notes::carried_by(note);
  }
  if (follows) {  // in the place of their notes
    Batch following(wire_, Wire::Traffic::noted);
    for (int member = 0; member < size(); ++member) {
      if (member == position_) continue;
      const auto* const part =
          static_cast<const std::byte*>(parts[static_cast<std::size_t>(member)]);
      std::byte* const to = memory.data() + (part - memory.data());
      recv(following, {to, static_cast<std::size_t>(call.bytes)}, member);
    }
    following.wait();
  }
  merge(parts);
  return latest;
}

/** In one call of the kernel. */
void HostGroup::send_together(const OneWay& call, std::span<const std::byte> note,
                              std::span<const std::byte> data) {
  Batch notes(wire_, Wire::Traffic::note);
  Batch following(wire_, Wire::Traffic::noted);
  {
    const Held together(wire_);
    for_each_taker(call, [&](int member) {
      send(notes, note, member);
      send(following, data, member);
    });
  }
  following.wait();
  notes.wait();
}

/** What has come of `data` leaves along with the note if this member passes it on. */
void HostGroup::take_together(const OneWay& call, std::span<const std::byte> note,
                              std::span<std::byte> data) {
  Batch notes(wire_, Wire::Traffic::note);
  Batch following(wire_, Wire::Traffic::noted);
  {
    const Held together(wire_);
    bool passes_on = false;
    for_each_taker(call, [&](int member) {
      send(notes, note, member);
      pass_on(following, data, giver_of(call), member);
      passes_on = true;
    });
    if (!passes_on) recv(following, data, giver_of(call));
    following.progress();
  }
  following.wait();
  notes.wait();
}

}  // namespace tutti
