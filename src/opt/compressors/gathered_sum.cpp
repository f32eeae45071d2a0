// A sum of sparse vectors where every rank gets the entries of all: how GPUs exchange them.
#include "opt/compressors/gathered_sum.hpp"

#include <span>

namespace tutti {
namespace {

constexpr std::int64_t kHead = 4;   // words in front of the indices, which keep 16 bytes' alignment
constexpr std::int64_t kGroup = 4;  // words of 16 bytes

}  // namespace

std::int64_t GatheredSum::words(std::int64_t room) { return kHead + 2 * room; }

Selected GatheredSum::slots_at(void* message, std::int64_t room, std::int64_t most) {
  auto* count = static_cast<std::uint32_t*>(message);
  std::uint32_t* indices = count + kHead;
  return {indices, reinterpret_cast<float*>(indices + room), count,
          static_cast<std::uint32_t>(most)};
}

Entries GatheredSum::entries_at(void* message, std::int64_t room, std::int64_t most) {
  const Selected slots = slots_at(message, room, most);
  return {slots.indices, slots.values, slots.count, most};
}

Selected GatheredSum::slots_of(const Message& message) {
  return slots_at(message.memory.data(), message.room, message.most);
}

void GatheredSum::make_room(Buffer& memory, std::int64_t words) const {
  const std::int64_t bytes = words * size_of(DType::i32);
  if (bytes <= memory.bytes()) return;
  memory = Buffer();  // before: both need not fit
  memory = arithmetic_->stream().allocate(bytes);
}

void GatheredSum::make_message(Message& message, std::int64_t most) const {
  message.most = most;
  message.room = (most + kGroup - 1) / kGroup * kGroup;
  make_room(message.memory, words(message.room));
}

void GatheredSum::select_top_k(const float* values, float* residual, std::int64_t count,
                               std::int64_t k) {
  make_message(own_, k);
  arithmetic_->select_top_k(values, residual, count, k, slots_of(own_));
  count_ = k;
  make_room_for_all();
}

void GatheredSum::select_above(const float* values, float* residual, std::int64_t count,
                               float threshold, Message& all) {
  make_message(all, count);
  arithmetic_->select_above(values, residual, count, threshold, slots_of(all));
  count_ = count_of(all);
  shrink(all);
  make_room_for_all();
}

/** Blocks: how many entries there are. */
std::int64_t GatheredSum::count_of(const Message& message) const {
  std::int32_t count = 0;  // at most kMostSelectable
  arithmetic_->stream()
      .copy(std::span(&count, 1), message.memory.view(DType::i32).part(0, 1))
      .wait();
  return count;
}

/** The same entries are what travels, in room for as many as the rank has that has most. */
void GatheredSum::shrink(const Message& message) {
  std::int64_t most = count_;
  communicator_->all_reduce(std::span(&most, 1), Reduce::max);
  make_message(own_, most);
  const auto copy = [&](std::int64_t to, std::int64_t from, std::int64_t words) {
    arithmetic_->stream().copy(own_.memory.view(DType::i32).part(to, words),
                               message.memory.view(DType::i32).part(from, words));
  };
  copy(0, 0, kHead + count_);  // the head and the indices
  copy(kHead + own_.room, kHead + message.room, count_);
}

void GatheredSum::make_room_for_all() {
  make_room(all_, words(own_.room) * communicator_->world_size());
}

void GatheredSum::add_up(float* sums, std::int64_t count) const {
  arithmetic_->stream().fill_with_zeros({sums, count, DType::f32, arithmetic_->device()});
  for (int rank = 0; rank < communicator_->world_size(); ++rank) {
    auto* message = static_cast<std::uint32_t*>(all_.data()) + rank * words(own_.room);
    arithmetic_->scatter_add(entries_at(message, own_.room, own_.most), sums);
  }
}

}  // namespace tutti
