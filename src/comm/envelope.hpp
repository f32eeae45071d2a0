// What the two sides of a message tell each other before it moves.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "tutti/message.hpp"

namespace tutti {

/** The tag of messages with which ranks make a group; no recv takes one. */
inline constexpr std::int32_t kGroupTag = -2;

/** What a sender has, or a receiver wants. Plain bytes, for shared memory and for messages. */
struct Envelope {
  std::int64_t count = 0;
  std::int32_t tag = 0;
  std::uint32_t number = 0;  ///< of the message, among all from its sender to its receiver; never 0
  DType dtype = DType::u8;
  bool last = true;  ///< of its call's messages to this receiver

  std::int64_t bytes() const { return count * size_of(dtype); }
  /** Whether a receiver that wants `wanted_tag` takes it. */
  bool has_tag(std::int32_t wanted_tag) const {
    return wanted_tag == tag || (wanted_tag == kAnyTag && tag >= 0);
  }
  /** "(f32, count 10, tag 3)". */
  std::string describe() const;
};

/** How a sender offers a message. Short ones come along. */
struct Offer {
  static constexpr std::int64_t kCarried = 128;

  Envelope envelope;
  std::array<std::byte, kCarried> data;

  bool carries() const { return envelope.bytes() <= kCarried; }
};
static_assert(std::is_trivially_copyable_v<Offer>);

/** Throws MismatchError, the same on both sides, unless the message is what the receiver wants. */
void check_same(int sender, const Envelope& offered, int receiver, const Envelope& wanted);

}  // namespace tutti
