// The sparse modes on GPUs: all entries go to all ranks, and the host looks at none of them.
#include <algorithm>
#include <span>
#include <utility>

#include "opt/compressors.hpp"
#include "opt/density.hpp"

namespace tutti {
namespace {

constexpr std::int64_t kHead = 4;   // words in front of the indices, which keep 16 bytes' alignment
constexpr std::int64_t kGroup = 4;  // words of 16 bytes

View bytes_at(const void* from, std::int64_t bytes, Device device) {
  return {const_cast<void*>(from), bytes, DType::u8, device};
}

}  // namespace

GatheredSparseCompressor::GatheredSparseCompressor(Communicator& communicator,
                                                   std::int64_t elements,
                                                   std::shared_ptr<Arithmetic> arithmetic)
    : SparseCompressor(elements, std::move(arithmetic)),
      communicator_(&communicator),
      non_finite_(this->arithmetic().stream()) {}

void GatheredSparseCompressor::choose(const SparseChoice& choice) {
  journeys_.clear();  // of a step that failed
  SparseCompressor::choose(choice);
}

std::int64_t GatheredSparseCompressor::words(std::int64_t room) { return kHead + 2 * room; }

Entries GatheredSparseCompressor::entries_at(const void* parcel, std::int64_t room,
                                             std::int64_t most) {
  const auto* count = static_cast<const std::uint32_t*>(parcel);
  const std::uint32_t* indices = count + kHead;
  return {indices, reinterpret_cast<const float*>(indices + room), count, most};
}

GatheredSparseCompressor::Parcel GatheredSparseCompressor::make_parcel(std::int64_t most) const {
  const std::int64_t room = (most + kGroup - 1) / kGroup * kGroup;
  return {arithmetic().stream().allocate(words(room) * size_of(DType::i32)), room, most};
}

void GatheredSparseCompressor::select(const BucketView& bucket, const Parcel& parcel) {
  const Entries entries = entries_at(parcel.memory.data(), parcel.room, parcel.most);
  const Selected selected{
      const_cast<std::uint32_t*>(entries.indices), const_cast<float*>(entries.values),
      const_cast<std::uint32_t*>(entries.count), static_cast<std::uint32_t>(parcel.most)};
  const std::int64_t count = bucket.gradients.count;
  if (choice().top_k) {
    arithmetic().select_top_k(source(bucket), residual(bucket), count, parcel.most, selected);
  } else {
    arithmetic().select_above(source(bucket), residual(bucket), count, threshold_of(choice().spars),
                              selected);
  }
  if (float* velocity = this->velocity(bucket)) arithmetic().clear(entries, velocity);
  arithmetic().count_non_finite(entries, non_finite_.where());
}

/** Blocks: how many entries there are. */
std::int64_t GatheredSparseCompressor::count_of(const Parcel& parcel) const {
  std::uint32_t count = 0;
  const Device device = arithmetic().device();
  arithmetic()
      .stream()
      .copy(bytes_at(&count, sizeof(count), {}),
            bytes_at(parcel.memory.data(), sizeof(count), device))
      .wait();
  return count;
}

/** The same entries in room for as many as the rank has that has most. */
GatheredSparseCompressor::Parcel GatheredSparseCompressor::shrink(Parcel parcel,
                                                                  std::int64_t count) {
  std::int64_t most = count;
  communicator_->all_reduce(std::span(&most, 1), Reduce::max);
  const Device device = arithmetic().device();
  Parcel small = make_parcel(most);
  const Entries from = entries_at(parcel.memory.data(), parcel.room, count);
  const Entries to = entries_at(small.memory.data(), small.room, count);
  const auto copy = [&](const void* out, const void* in, std::int64_t words) {
    const std::int64_t bytes = words * size_of(DType::i32);
    arithmetic().stream().copy(bytes_at(out, bytes, device), bytes_at(in, bytes, device));
  };
  copy(to.count, from.count, kHead);
  copy(to.indices, from.indices, count);
  copy(to.values, from.values, count);
  return small;
}

Packet GatheredSparseCompressor::encode(const BucketView& bucket) {
  accumulate(bucket);
  const bool top_k = choice().top_k;
  Journey journey;
  journey.own =
      make_parcel(top_k ? top_k_count(choice().spars, bucket.elements) : bucket.gradients.count);
  select(bucket, journey.own);
  std::int64_t count = journey.own.most;
  if (!top_k) {
    count = count_of(journey.own);
    journey.own = shrink(std::move(journey.own), count);
  }
  const std::int64_t bytes = journey.own.memory.bytes();
  journey.all = arithmetic().stream().allocate(bytes * communicator_->world_size());
  Packet packet{bucket.gradients, Reduce::average};
  packet.gathered =
      GatheredEntries{journey.own.memory.view(DType::i32), journey.all.view(DType::i32), count};
  journeys_.push_back(std::move(journey));
  return packet;
}

void GatheredSparseCompressor::decode(const BucketView& bucket) {
  const Journey journey = std::move(journeys_.front());
  journeys_.pop_front();
  auto* sums = static_cast<float*>(bucket.gradients.data);
  arithmetic().stream().fill_with_zeros(bucket.gradients);
  const int ranks = communicator_->world_size();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto* parcel =
        static_cast<const std::uint32_t*>(journey.all.data()) + rank * words(journey.own.room);
    arithmetic().scatter_add(entries_at(parcel, journey.own.room, journey.own.most), sums);
  }
  arithmetic().divide(sums, bucket.gradients.count, static_cast<float>(ranks));
}

}  // namespace tutti
