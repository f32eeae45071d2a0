// Broadcasts that go one way: a note from the root, and what does not fit into it behind.
#include <bit>

#include "base/finally.hpp"
#include "base/memory.hpp"
#include "comm/hosts/group.hpp"

namespace tutti {
namespace {

/** So many members get notes of the root itself: more take less time if those who have it help. */
constexpr int kMostOfRoot = 3;
/** But from so many in a row on two of three do. */
constexpr int kRow = 2;

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

bool HostGroup::passes_on(const OneWay& call) const {
  if (call.bytes > Notes::kCarried) return false;
  return size() > kMostOfRoot || (size() == kMostOfRoot && call.in_a_row >= kRow);
}

int HostGroup::giver(const OneWay& call) const {
  const int own = (position_ - call.root + size()) % size();
  const int parent = size() > kMostOfRoot ? own & (own - 1) : own - 1;
  return member(static_cast<std::size_t>((call.root + (passes_on(call) ? parent : 0)) % size()));
}

template <class Taker>
void HostGroup::for_each_taker(const OneWay& call, const Taker& taker) const {
  const int own = (position_ - call.root + size()) % size();
  const auto take = [&](int position) { taker((call.root + position) % size()); };
  if (!passes_on(call)) {
    for (int other = 1; own == 0 && other < size(); ++other) take(other);
  } else if (size() > kMostOfRoot) {
    for_each_child(own, size(), take);
  } else if (own + 1 < size()) {
    take(own + 1);
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
  Notes::Next next;
  if (passes_on(call)) next = notes.next(note.data());
  if (next.batch == nullptr) return pass_note(call, batch, note);
  wire_.hold(true);
  const Finally release([this] { wire_.hold(false); });
  pass_note(call, batch, note);
  for (; next.batch != nullptr; next = notes.next(next.note.data())) {
    pass_note(call, *next.batch, next.note);
  }
}

void HostGroup::send_one_way(const OneWay& call, Notes& notes, std::span<const std::byte> data,
                             std::chrono::microseconds away) {
  const bool follows = std::ssize(data) > Notes::kCarried;
  const Scratch note(wire_.scratch(), Wire::kShort);
  const std::int64_t bytes =
      notes.write(note.data(), follows ? std::span<const std::byte>() : data, away);
  Batch batch(wire_, Wire::Traffic::note);
  pass_note(call, batch, {note.data(), static_cast<std::size_t>(bytes)});
  if (follows) {  // it is only read
    broadcast(const_cast<std::byte*>(data.data()), std::ssize(data), position_, data.data(), {},
              Wire::Traffic::noted);
  }
  batch.wait();
}

std::chrono::microseconds HostGroup::take_one_way(const OneWay& call, Notes& notes,
                                                  std::span<std::byte> data) {
  const Scratch note(wire_.scratch(), Wire::kShort);
  const std::int64_t bytes = notes.wait(note.data());
  Batch batch(wire_, Wire::Traffic::note);
  if (!notes.is_passed_on()) {
    pass_notes(call, batch, notes, {note.data(), static_cast<std::size_t>(bytes)});
  }
  if (std::ssize(data) <= Notes::kCarried) {
    copy_bytes(data.data(), Notes::carried_by(note.data()), std::ssize(data));
  } else {
    broadcast(data.data(), std::ssize(data), call.root, data.data(), {}, Wire::Traffic::noted);
    // Of another root some of the data may be that others have passed on.
    if (!goes_straight(std::ssize(data), Wire::Traffic::noted)) notes.look();
  }
  notes.is_passed_on() ? notes.wait_until_passed_on() : batch.wait();
  return Notes::away_in(note.data());
}

}  // namespace tutti
