// Calls that go one way: a note from the root, or to it, and behind it what does not fit in.
#include "comm/hosts/group/one_way.hpp"

#include <algorithm>
#include <bit>

#include "base/memory.hpp"
#include "comm/hosts/group/broadcast.hpp"
#include "comm/hosts/group/group_batch.hpp"
#include "comm/hosts/group/shards.hpp"

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
/** Of what follows notes from one member to all others, or to one from all on a fast wire, all
 * together. More is worth two rounds, in which every two talk to each other, over MPI; on a fast
 * wire it goes from member to member. */
constexpr std::int64_t kSmallNoted = std::int64_t{128} * 1024;

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

bool broadcasts_one_way(const HostGroup& group, std::int64_t bytes) {
  constexpr std::int64_t kMost = std::int64_t{64} * 1024;
  if (group.size() > HostGroup::kMostCentred) return bytes <= Notes::kCarried;
  return bytes <= (group.size() == 2 ? 2 * kMost : kMost);
}

/** The root's link takes what all bring: of more than that, or on a wire that is not fast, shares
 * that all add up take less time. */
bool reduces_one_way(const HostGroup& group, std::int64_t bytes) {
  if (group.size() > HostGroup::kMostCentred) return false;
  if (group.size() == 2) return broadcasts_one_way(group, bytes);
  return bytes * (group.size() - 1) <= (group.wire().is_fast() ? kSmallNoted : kMostBrought);
}

OneWayCall::Route OneWayCall::route() const {
  if (terms_.direction == Direction::to_root) return Route::to_root;
  if (terms_.bytes <= Notes::kCarried) {
    if (group_.size() > kMostOfRoot) return Route::tree;
    return group_.size() == kMostOfRoot && terms_.in_a_row >= kRow ? Route::row : Route::from_root;
  }
  if (group_.size() == 2) return Route::from_root;
  const bool is_small = terms_.bytes * (group_.size() - 1) <= kSmallNoted;
  if (!broadcasts_in_chain(group_)) return is_small ? Route::from_root : Route::shares;
  return terms_.bytes < kRowOfData || (is_small && group_.wire().is_fast()) ? Route::from_root
                                                                            : Route::row;
}

int OneWayCall::giving_member() const {
  const int own = (group_.position() - terms_.root + group_.size()) % group_.size();
  switch (route()) {
    case Route::tree:
      return (terms_.root + (own & (own - 1))) % group_.size();
    case Route::row:
      return group_.peer(group_.size() - 1);
    default:
      return terms_.root;
  }
}

template <class Taker>
void OneWayCall::for_each_taker(const Taker& taker) const {
  const int own = (group_.position() - terms_.root + group_.size()) % group_.size();
  const auto take = [&](int position) { taker((terms_.root + position) % group_.size()); };
  switch (route()) {
    case Route::tree:
      return for_each_child(own, group_.size(), take);
    case Route::row:
      if (own + 1 < group_.size()) take(own + 1);
      return;
    case Route::to_root:
      return take(0);
    default:
      for (int other = 1; own == 0 && other < group_.size(); ++other) take(other);
  }
}

void OneWayCall::pass_note(Batch& batch, std::span<const std::byte> note) const {
  for_each_taker(
      [&](int taker) { batch.send(note.data(), std::ssize(note), group_.member(taker)); });
}

/** So they leave in one call of the kernel. A taker that makes another call of those finds out by
 * itself; one that does not has the root's data then, whatever call this member makes. */
void OneWayCall::pass_notes(Batch& batch, Notes& notes, std::span<const std::byte> note) const {
  int takers = 0;
  for_each_taker([&](int /*member*/) { ++takers; });
  if (takers == 0) return;
  Notes::Next next = notes.next(note.data());
  if (next.batch == nullptr) return pass_note(batch, note);
  const Held together(group_.wire());
  pass_note(batch, note);
  for (; next.batch != nullptr; next = notes.next(next.note.data())) {
    pass_note(*next.batch, next.note);
  }
}

void OneWayCall::send(Notes& notes, std::span<const std::byte> data,
                      std::chrono::microseconds away) const {
  const Scratch memory(group_.wire().scratch(), Wire::kShort);
  const std::int64_t bytes =
      notes.write(memory.data(), data_follow() ? std::span<const std::byte>() : data, away);
  const std::span<const std::byte> note(memory.data(), static_cast<std::size_t>(bytes));
  if (data_follow() && route() != Route::shares) return send_together(note, data);
  Batch batch(group_.wire(), Wire::Traffic::note);
  pass_note(batch, note);
  if (data_follow()) {  // it is only read
    broadcast_shares(group_, group_.position(), const_cast<std::byte*>(data.data()),
                     std::ssize(data), data.data(), {}, Wire::Traffic::noted);
  }
  batch.wait();
}

std::chrono::microseconds OneWayCall::take(Notes& notes, std::span<std::byte> data) const {
  const Scratch memory(group_.wire().scratch(), Wire::kShort);
  const std::int64_t bytes = notes.wait(memory.data()).bytes;
  const std::span<const std::byte> note(memory.data(), static_cast<std::size_t>(bytes));
  Batch batch(group_.wire(), Wire::Traffic::note);
  if (data_follow() && route() == Route::shares) {
    broadcast_shares(group_, terms_.root, data.data(), std::ssize(data), data.data(), {},
                     Wire::Traffic::noted);
    notes.look();  // of another root some of the data may be that others have passed on
  } else if (data_follow()) {
    take_together(note, data);
  } else {
    if (!notes.is_passed_on()) pass_notes(batch, notes, note);
    copy_bytes(data.data(), Notes::carried_by(note.data()), std::ssize(data));
  }
  notes.is_passed_on() ? notes.wait_until_passed_on() : batch.wait();
  return Notes::away_in(note.data());
}

OneWayCall::Latest OneWayCall::collect(Notes& notes, std::span<const std::byte> own,
                                       const HostGroup::Merge& merge) const {
  constexpr std::int64_t kLine = Shards::kCacheLine;
  const std::int64_t longest = std::max(Wire::kShort, terms_.bytes);
  const std::int64_t room = (longest + kLine - 1) / kLine * kLine;
  const Scratch memory(group_.wire().scratch(), room * (group_.size() - 1));
  RecycledVector<const void*> parts(static_cast<std::size_t>(group_.size()));
  parts[static_cast<std::size_t>(group_.position())] = own.data();
  Latest latest{};
  for (int number = 0; number + 1 < group_.size(); ++number) {
    std::byte* const note = memory.data() + number * room;
    latest.rank = notes.wait(note).source;
    latest.away = Notes::away_in(note);
    const auto at = static_cast<std::size_t>(group_.position_of(latest.rank));
    parts[at] = data_follow() ? note : Notes::carried_by(note);
  }
  if (data_follow()) {  // in the place of their notes
    GroupBatch following(group_, Wire::Traffic::noted);
    for (int member = 0; member < group_.size(); ++member) {
      if (member == group_.position()) continue;
      const auto* const part =
          static_cast<const std::byte*>(parts[static_cast<std::size_t>(member)]);
      std::byte* const to = memory.data() + (part - memory.data());
      following.recv({to, static_cast<std::size_t>(terms_.bytes)}, member);
    }
    following.wait();
  }
  merge(parts);
  return latest;
}

/** In one call of the kernel. */
void OneWayCall::send_together(std::span<const std::byte> note,
                               std::span<const std::byte> data) const {
  GroupBatch notes(group_, Wire::Traffic::note);
  GroupBatch following(group_, Wire::Traffic::noted);
  {
    const Held together(group_.wire());
    for_each_taker([&](int member) {
      notes.send(note, member);
      following.send(data, member);
    });
  }
  following.wait();
  notes.wait();
}

/** What has come of `data` leaves along with the note if this member passes it on. */
void OneWayCall::take_together(std::span<const std::byte> note, std::span<std::byte> data) const {
  GroupBatch notes(group_, Wire::Traffic::note);
  GroupBatch following(group_, Wire::Traffic::noted);
  {
    const Held together(group_.wire());
    bool passes_on = false;
    for_each_taker([&](int member) {
      notes.send(note, member);
      following.pass_on(data, giving_member(), member);
      passes_on = true;
    });
    if (!passes_on) following.recv(data, giving_member());
    following.progress();
  }
  following.wait();
  notes.wait();
}

}  // namespace tutti
