// A sum of sparse vectors where every rank gets the entries of all: how GPUs exchange them.
#include "opt/gathered_sum.hpp"

#include <span>
#include <utility>

namespace tutti {
namespace {

constexpr std::int64_t kHead = 4;   // words in front of the indices, which keep 16 bytes' alignment
constexpr std::int64_t kGroup = 4;  // words of 16 bytes

View bytes_at(const void* from, std::int64_t bytes, Device device) {
  return {const_cast<void*>(from), bytes, DType::u8, device};
}

}  // namespace

std::int64_t GatheredSum::words(std::int64_t room) { return kHead + 2 * room; }

Entries GatheredSum::entries_at(const void* parcel, std::int64_t room, std::int64_t most) {
  const auto* count = static_cast<const std::uint32_t*>(parcel);
  const std::uint32_t* indices = count + kHead;
  return {indices, reinterpret_cast<const float*>(indices + room), count, most};
}

Selected GatheredSum::selected_at(const Parcel& parcel) {
  const Entries entries = entries_at(parcel.memory.data(), parcel.room, parcel.most);
  return {const_cast<std::uint32_t*>(entries.indices), const_cast<float*>(entries.values),
          const_cast<std::uint32_t*>(entries.count), static_cast<std::uint32_t>(parcel.most)};
}

GatheredSum::Parcel GatheredSum::make_parcel(std::int64_t most) const {
  const std::int64_t room = (most + kGroup - 1) / kGroup * kGroup;
  return {arithmetic_->stream().allocate(words(room) * size_of(DType::i32)), room, most};
}

void GatheredSum::select_top_k(const float* values, float* residual, std::int64_t count,
                               std::int64_t k) {
  own_ = make_parcel(k);
  arithmetic_->select_top_k(values, residual, count, k, selected_at(own_));
  count_ = k;
  make_room();
}

void GatheredSum::select_above(const float* values, float* residual, std::int64_t count,
                               float threshold) {
  const Parcel all = make_parcel(count);
  arithmetic_->select_above(values, residual, count, threshold, selected_at(all));
  count_ = count_of(all);
  own_ = shrink(all);
  make_room();
}

/** Blocks: how many entries there are. */
std::int64_t GatheredSum::count_of(const Parcel& parcel) const {
  std::uint32_t count = 0;
  arithmetic_->stream()
      .copy(bytes_at(&count, sizeof(count), {}),
            bytes_at(parcel.memory.data(), sizeof(count), arithmetic_->device()))
      .wait();
  return count;
}

/** The same entries in room for as many as the rank has that has most. */
GatheredSum::Parcel GatheredSum::shrink(const Parcel& parcel) const {
  std::int64_t most = count_;
  communicator_->all_reduce(std::span(&most, 1), Reduce::max);
  Parcel small = make_parcel(most);
  const Entries from = entries_at(parcel.memory.data(), parcel.room, count_);
  const Entries to = entries_at(small.memory.data(), small.room, count_);
  const auto copy = [&](const void* out, const void* in, std::int64_t words) {
    const std::int64_t bytes = words * size_of(DType::i32);
    const Device device = arithmetic_->device();
    arithmetic_->stream().copy(bytes_at(out, bytes, device), bytes_at(in, bytes, device));
  };
  copy(to.count, from.count, 1);
  copy(to.indices, from.indices, count_);
  copy(to.values, from.values, count_);
  return small;
}

void GatheredSum::make_room() {
  all_ = arithmetic_->stream().allocate(own_.memory.bytes() * communicator_->world_size());
}

GatheredEntries GatheredSum::packet() const {
  return {own_.memory.view(DType::i32), all_.view(DType::i32), count_};
}

void GatheredSum::add_up(float* sums, std::int64_t count) const {
  arithmetic_->stream().fill_with_zeros({sums, count, DType::f32, arithmetic_->device()});
  for (int rank = 0; rank < communicator_->world_size(); ++rank) {
    const auto* parcel = static_cast<const std::uint32_t*>(all_.data()) + rank * words(own_.room);
    arithmetic_->scatter_add(entries_at(parcel, own_.room, own_.most), sums);
  }
}

}  // namespace tutti
