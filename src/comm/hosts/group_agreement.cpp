// Whether the members of a group ask for the same, and what goes along with the question.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/memory.hpp"
#include "comm/hosts/group.hpp"

namespace tutti {
namespace {

constexpr int kCentre = 0;
constexpr std::int64_t kNoteBytes = HostGroup::kCacheLine;
constexpr std::int64_t kFirst = Wire::kPiece - kNoteBytes;  // of what is carried goes with the note

}  // namespace

std::int64_t HostGroup::most_carried() const {
  constexpr std::int64_t kBetweenTwo = std::int64_t{128} * 1024;
  constexpr std::int64_t kAmongMany = 1024;
  if (size() <= 2) return kBetweenTwo;
  const std::int64_t share = kSmall / (size() - 1) / kNoteBytes * kNoteBytes;
  return is_centred() ? share : std::max(share, kAmongMany);
}

bool HostGroup::carries(std::int64_t each, std::int64_t out) const {
  return each <= most_carried() && (!is_centred() || out <= most_carried());
}

std::int64_t HostGroup::place_bytes() const {
  return is_centred() ? kNoteBytes + most_carried() : Wire::kPiece;
}

bool HostGroup::agree(std::uint64_t hash, const Brought& brought, std::span<std::byte> out,
                      const Merge& merge) {
  if (!places_) {
    // One of each member and the answer; or what leaves, what arrives, and what has come by then.
    const std::int64_t bytes =
        is_centred() ? (size() + 1) * place_bytes() : 2 * place_bytes() + size() * most_carried();
    places_ = std::make_shared_for_overwrite<std::byte[]>(static_cast<std::size_t>(bytes));
  }
  const Note note{hash, 0, 0, position_, 1};
  if (!is_centred()) return disseminate(note, brought, merge);
  if (position_ == kCentre) return answer_all(note, brought, out, merge);
  return ask_centre(note, brought, out);
}

// --- Through the first member -------------------------------------------------------------------

bool HostGroup::ask_centre(Note note, const Brought& brought, std::span<std::byte> out) {
  std::byte* const question = place(position_);
  std::byte* const answer = place(kCentre);
  note.carried = brought.bytes_of(position_);
  std::memcpy(question, &note, sizeof note);
  copy_bytes(question + kNoteBytes, brought.own.data(), note.carried);
  Batch batch(wire_, Wire::Traffic::collective);
  batch.keep(places_);
  recv(batch, {answer, static_cast<std::size_t>(place_bytes())}, kCentre);
  send(batch, {question, static_cast<std::size_t>(kNoteBytes + note.carried)}, kCentre);
  batch.wait();
  std::memcpy(&note, answer, sizeof note);
  last_ = note.late;
  if (note.agreed != 0) copy_bytes(out.data(), answer + kNoteBytes, std::ssize(out));
  return note.agreed != 0;
}

bool HostGroup::answer_all(Note note, const Brought& brought, std::span<std::byte> out,
                           const Merge& merge) {
  {
    Batch questions(wire_, Wire::Traffic::collective);
    questions.keep(places_);
    for (int member = 1; member < size(); ++member) {
      recv(questions, {place(member), static_cast<std::size_t>(place_bytes())}, member);
    }
    questions.wait();
    const auto last = std::find(members_.begin(), members_.end(), questions.last_source());
    note.late = static_cast<std::int32_t>(last - members_.begin());
  }
  last_ = note.late;
  RecycledVector<const void*> parts;
  parts.push_back(brought.own.data());
  for (int member = 1; member < size(); ++member) {
    Note theirs;
    std::memcpy(&theirs, place(member), sizeof theirs);
    if (theirs.hash != note.hash) note.agreed = 0;
    parts.push_back(place(member) + kNoteBytes);
  }
  std::byte* const answer = place(size());
  if (note.agreed != 0) {
    if (merge) merge(parts);
    note.carried = std::ssize(out);
    copy_bytes(answer + kNoteBytes, out.data(), note.carried);
  }
  std::memcpy(answer, &note, sizeof note);
  Batch answers(wire_, Wire::Traffic::collective);
  answers.keep(places_);
  for (int member = 1; member < size(); ++member) {
    send(answers, {answer, static_cast<std::size_t>(kNoteBytes + note.carried)}, member);
  }
  answers.wait();
  return note.agreed != 0;
}

// --- Dissemination ------------------------------------------------------------------------------

/**
 * What has come by then lies in the order of the members from this one on, so what a member sends
 * is the beginning of what it has. A member that knows of a difference sends on no more than that.
 */
bool HostGroup::disseminate(Note note, const Brought& brought, const Merge& merge) {
  std::byte* const leaves = place(0);
  std::byte* const arrives = place(1);
  std::byte* const have = place(2);
  // How many bytes the first `members` members from this one on bring.
  const auto bytes_of_first = [&](int members) {
    if (brought.only == Brought::kAll) return members * brought.each;
    return (brought.only - position_ + size()) % size() < members ? brought.each : 0;
  };
  copy_bytes(have, brought.own.data(), brought.bytes_of(position_));
  for (int known = 1; known < size();) {
    const int more = std::min(known, size() - known);
    const int source = peer(known);
    const int target = peer(size() - known);
    note.carried = note.agreed != 0 ? bytes_of_first(more) : 0;
    const std::int64_t first = std::min(note.carried, kFirst);
    std::memcpy(leaves, &note, sizeof note);
    copy_bytes(leaves + kNoteBytes, have, first);
    Batch beginnings(wire_, Wire::Traffic::collective);
    beginnings.keep(places_);
    recv(beginnings, {arrives, static_cast<std::size_t>(Wire::kPiece)}, source);
    send(beginnings, {leaves, static_cast<std::size_t>(kNoteBytes + first)}, target);
    std::optional<Batch> rests;  // of what is longer than that
    if (note.carried > first) {
      rests.emplace(wire_, Wire::Traffic::collective);
      rests->keep(places_);
      send(*rests, {have + first, static_cast<std::size_t>(note.carried - first)}, target);
    }
    const auto since = wire_.now();
    beginnings.wait();

    Note theirs;
    std::memcpy(&theirs, arrives, sizeof theirs);
    const auto waited = static_cast<std::uint64_t>((wire_.now() - since).count());
    if (waited > note.waited) {  // for the source, unless it has waited itself meanwhile
      const bool itself = theirs.waited < waited / 2;
      note.waited = waited;
      note.late = itself ? source : theirs.late;
    }
    if (theirs.hash != note.hash || theirs.agreed == 0) note.agreed = 0;
    const std::int64_t begun = std::min(theirs.carried, kFirst);
    // Of what differs nothing is kept, but it has to be taken.
    std::byte* const to = note.agreed != 0 ? have + bytes_of_first(known) : nullptr;
    const std::int64_t left = theirs.carried - begun;
    const Scratch dropped(wire_.scratch(), to == nullptr ? left : 0);
    if (to != nullptr) copy_bytes(to, arrives + kNoteBytes, begun);
    if (left > 0) {
      if (!rests) rests.emplace(wire_, Wire::Traffic::collective);
      rests->keep(places_);
      recv(*rests, {to == nullptr ? dropped.data() : to + begun, static_cast<std::size_t>(left)},
           source);
    }
    if (rests) rests->wait();
    known += more;
  }
  last_ = note.late;
  if (note.agreed == 0) return false;
  if (!merge) return true;
  RecycledVector<const void*> parts(members_.size());
  for (int distance = 0; distance < size(); ++distance) {
    parts[static_cast<std::size_t>(peer(distance))] = have + bytes_of_first(distance);
  }
  merge(parts);
  return true;
}

}  // namespace tutti
