// Gathers the colors and keys, and picks this rank's part; tells the members of a group of each
// other.
#include "comm/split.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "comm/envelope.hpp"
#include "comm/signature.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

/** What a rank tells all others for a split. */
struct SplitNote {
  std::int32_t color = 0;
  std::int32_t key = 0;
  std::int32_t context = 0;
  std::array<std::byte, UniqueId::kBytes> ticket{};
};

/** What a member of a group tells the others. */
struct GroupNote {
  static constexpr std::size_t kShown = 64;

  std::uint64_t hash = 0;  ///< of all ranks, in their order
  std::int32_t count = 0;
  std::int32_t context = 0;
  std::array<std::byte, UniqueId::kBytes> ticket{};
  std::array<std::int32_t, kShown> first{};

  bool has_same_ranks(const GroupNote& other) const {
    return count == other.count && hash == other.hash;
  }
  /** "[0, 2]". */
  std::string describe() const {
    std::string text;
    const std::size_t shown = std::min(static_cast<std::size_t>(count), kShown);
    for (std::size_t i = 0; i < shown; ++i) {
      text += (i == 0 ? "[" : ", ") + std::to_string(first[i]);
    }
    const bool cut = static_cast<std::size_t>(count) > kShown;
    return text + (cut ? ", ... " + std::to_string(count) + " in all]" : "]");
  }
};

GroupNote note_of(std::span<const int> ranks, std::int32_t context) {
  GroupNote note;
  note.count = static_cast<std::int32_t>(ranks.size());
  note.context = context;
  note.ticket = UniqueId::create().bytes();
  for (const int rank : ranks) note.hash = mix_hash(note.hash, static_cast<std::uint64_t>(rank));
  std::copy_n(ranks.begin(), std::min(ranks.size(), GroupNote::kShown), note.first.begin());
  return note;
}

/** Memory of notes that travel: whoever is lost may still write it. */
template <class Note>
class NoteMemory {
 public:
  NoteMemory(ScratchPool& pool, std::size_t count, const Note& initial)
      : memory_(pool, static_cast<std::int64_t>(count * sizeof(Note))),
        notes_(reinterpret_cast<Note*>(memory_.data()), count) {
    std::uninitialized_fill(notes_.begin(), notes_.end(), initial);
  }
  std::span<Note> all() const { return notes_; }

 private:
  Scratch memory_;
  std::span<Note> notes_;
};

}  // namespace

PartPlan plan_split(Transport& transport, ScratchPool& scratch, int color, int key,
                    std::int32_t context) {
  const auto size = static_cast<std::size_t>(transport.size());
  const SplitNote own{color, key, context, UniqueId::create().bytes()};
  const NoteMemory<SplitNote> memory(scratch, size + 1, own);  // this rank's behind those of all
  const std::span<SplitNote> notes = memory.all().first(size);
  constexpr std::int64_t kNote = sizeof(SplitNote);
  transport.run(Call::all_gather(ConstView(&memory.all()[size], kNote, DType::u8),
                                 View(notes.data(), kNote * transport.size(), DType::u8)));

  PartPlan plan;
  if (color < 0) return plan;
  const auto note_of_rank = [&](int rank) -> const SplitNote& {
    return notes[static_cast<std::size_t>(rank)];
  };
  for (int rank = 0; rank < transport.size(); ++rank) {
    plan.context = std::max(plan.context, note_of_rank(rank).context);
    if (note_of_rank(rank).color == color) plan.members.push_back(rank);
  }
  std::stable_sort(plan.members.begin(), plan.members.end(),
                   [&](int a, int b) { return note_of_rank(a).key < note_of_rank(b).key; });
  const auto self = std::find(plan.members.begin(), plan.members.end(), transport.rank());
  plan.rank = static_cast<int>(self - plan.members.begin());
  for (const int member : plan.members) {
    plan.tickets.push_back(UniqueId::from_bytes(note_of_rank(member).ticket));
  }
  return plan;
}

/**
 * Two ranks make the groups that both are in in the same order, so what one of them hears first
 * from the other is about the group that it makes itself, or neither will ever go on.
 */
PartPlan plan_group(Transport& transport, ScratchPool& scratch, std::span<const int> ranks,
                    std::int32_t context) {
  const NoteMemory<GroupNote> memory(scratch, ranks.size() + 1, note_of(ranks, context));
  const std::span<GroupNote> notes = memory.all().first(ranks.size());
  const GroupNote& own = memory.all()[ranks.size()];
  std::vector<Message> messages;
  PartPlan plan;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == transport.rank()) {
      plan.rank = static_cast<int>(i);
      continue;
    }
    messages.push_back(Message::send(ConstView(&own, sizeof own, DType::u8), ranks[i], kGroupTag));
    messages.push_back(Message::recv(View(&notes[i], sizeof own, DType::u8), ranks[i], kGroupTag));
  }
  transport.run(Call::exchange(messages));
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (own.has_same_ranks(notes[i])) continue;
    std::pair one{transport.rank(), &own};
    std::pair<int, const GroupNote*> other{ranks[i], &notes[i]};
    if (other.first < one.first) std::swap(one, other);
    throw MismatchError("rank " + std::to_string(one.first) + " makes a group of the ranks " +
                        one.second->describe() + ", but rank " + std::to_string(other.first) +
                        " one of " + other.second->describe());
  }
  plan.members.assign(ranks.begin(), ranks.end());
  for (const GroupNote& note : notes) {
    plan.tickets.push_back(UniqueId::from_bytes(note.ticket));
    plan.context = std::max(plan.context, note.context);
  }
  return plan;
}

void meet_group(Transport& transport, std::span<const int> ranks) {
  std::vector<Message> messages;
  for (const int rank : ranks) {
    if (rank == transport.rank()) continue;
    messages.push_back(Message::send(ConstView(nullptr, 0, DType::u8), rank, kGroupTag));
    messages.push_back(Message::recv(View(nullptr, 0, DType::u8), rank, kGroupTag));
  }
  transport.run(Call::exchange(messages));
}

}  // namespace tutti
