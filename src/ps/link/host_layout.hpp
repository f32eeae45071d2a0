// What the shared memory of a link inside a host looks like.
#pragma once

#include <atomic>
#include <cstdint>

#include "comm/shm/memory/flag.hpp"
#include "ps/link/doorbell.hpp"
#include "ps/link/link.hpp"
#include "ps/link/message.hpp"

namespace tutti::ps {

/** A request, in a cache line of its own. It exists once `number` is its own. */
struct RequestSlot {
  alignas(64) std::atomic<std::uint64_t> number;
  RequestHeader header;
  std::int64_t offset;  ///< of the payload, in the same object
};

/** What the worker writes; payloads follow. Zeros at first, in which no request exists. */
struct RequestArea {
  RequestSlot slots[kMostUnanswered];
  alignas(64) std::atomic<std::uint64_t> taken;  ///< answers that it has read: their memory is free
};

struct AnswerSlot {
  alignas(64) std::atomic<std::uint64_t> number;
  ReplyHeader header;
  std::int64_t offset;
};

/** What the server writes; payloads of replies follow. */
struct AnswerArea {
  AnswerSlot slots[kMostUnanswered];
  shm::Flag answered;  ///< requests, modulo 2^32: for the worker to sleep on
  alignas(64) std::atomic<std::uint32_t> sleeping;  ///< the server is to be woken
  DoorbellAddress doorbell;                         ///< by this; there before it sleeps
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

/** Where payloads begin in both objects. */
inline constexpr std::int64_t kPayloads = std::int64_t{256} * 1024;
static_assert(sizeof(RequestArea) <= kPayloads && sizeof(AnswerArea) <= kPayloads);

template <class Slots>
auto& slot_of(Slots& slots, std::uint64_t number) {
  return slots[number % kMostUnanswered];
}

}  // namespace tutti::ps
