// Writes and reads notes among the ranks of a host.
#include "comm/shm/local_notes.hpp"

#include <array>
#include <vector>

#include "base/memory.hpp"

namespace tutti::shm {
namespace {

constexpr const char* kWay = "note";  // for the journal

}  // namespace

void LocalNotes::look() const {
  const std::vector<RankSignature> requests = signatures_.differing();
  if (!requests.empty()) throw OneSidedMismatch(describe_mismatch(requests));
}

std::span<std::byte> LocalNotes::make_room(std::int64_t bytes) {
  group_.check_failure();
  group_.journal().went(record::Lane::collective, kWay);
  if (++number_ - read_by_all_ > Notebook::kNotes) {
    look();
    group_.wait_for_all(&RankSlot::noted, number_ - Notebook::kNotes,
                        LocalGroup::Waited::for_arrival);
    read_by_all_ = number_ - 1;
    for (int peer = 0; peer < group_.size(); ++peer) {
      const std::uint32_t noted = group_.control().slot(peer).noted.signal().value();
      // Counters wrap around.
      if (static_cast<std::int32_t>(noted - read_by_all_) < 0) read_by_all_ = noted;
    }
  }
  return {own_note().data.data(), static_cast<std::size_t>(bytes)};
}

void LocalNotes::leave(const record::Absence& absence) {
  group_.check_failure();
  Notebook::Entry& note = own_note();
  note.hash = signatures_.hash();
  note.absence = absence;
  release();
}

void LocalNotes::refuse(int writer) const {
  look();
  const std::array<RankSignature, 2> both{signatures_.last_of(writer),
                                          signatures_.last_of(group_.rank())};
  throw OneSidedMismatch(describe_mismatch(both));
}

record::Absence LocalNotes::read(int writer, std::span<std::byte> data, int author) {
  group_.check_failure();
  group_.journal().went(record::Lane::collective, kWay);
  const std::uint64_t since = group_.wait_for(writer, &RankSlot::noted, ++number_);
  const Notebook::Entry& note = note_of(writer);
  if (note.hash != signatures_.hash()) refuse(writer);
  const record::Absence absence = note.absence;
  if (since != 0) group_.note_wait_for(author, since, absence);
  copy_bytes(data.data(), note.data.data(), std::ssize(data));
  release();
  return absence;
}

record::Absence LocalNotes::collect(std::span<const void*> parts) {
  group_.check_failure();
  group_.journal().went(record::Lane::collective, kWay);
  ++number_;
  group_.wait_for_all(&RankSlot::noted, number_, LocalGroup::Waited::for_arrival);
  record::Absence last;
  for (int rank = 0; rank < group_.size(); ++rank) {
    if (rank == group_.rank()) continue;
    const Notebook::Entry& note = note_of(rank);
    if (note.hash != signatures_.hash()) refuse(rank);
    if (note.absence.until > last.until) last = note.absence;
    parts[static_cast<std::size_t>(rank)] = note.data.data();
  }
  return last;
}

}  // namespace tutti::shm
