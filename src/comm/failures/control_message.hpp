// What ranks tell each other while they wait, in plain bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <variant>

#include "base/recycled.hpp"
#include "comm/failure.hpp"
#include "comm/message_counts.hpp"

namespace tutti {

/** "Whom do you wait for?" */
struct Question {
  std::uint32_t number = 0;  ///< of the inquiry, by who makes it
  std::int64_t overdue = 0;  ///< milliseconds since the asker's deadline passed first; or until
};

/** The processes that this one waits for, in whichever communicator: the ranks of those that are of
 * the session over which the answer goes, numbers of the others (see ProcessNumber), or kUnknown.
 */
struct Answer {
  static constexpr std::size_t kMost = 256;
  static constexpr std::uint64_t kUnknown = UINT32_MAX;
  std::uint32_t number = 0;
  std::int32_t awaited_count = 0;
  // Milliseconds since calls of this rank have got on: those that it had begun when the asker's
  // deadline passed first, and those that it began later.
  std::int64_t idle = 0;
  std::int64_t idle_later = 0;
  std::array<std::uint64_t, kMost> entries{};
};

/** "I have left, and have sent you so many messages." */
struct Departure {
  MessageCounts::Sent sent;
};

/** "Tell me when you leave, or if you have." */
struct Enquiry {};

/** How many departures and enquiries those have told, and heard of, who are below the sender in the
 * tree of those who leave, and have all left (see Departures); from the one above, that all have.
 */
struct Headcount {
  std::uint64_t told = 0;
  std::uint64_t heard = 0;
  bool operator==(const Headcount&) const = default;
};

/** Below every eager limit of Open MPI, so that it goes out without its receiver's help. */
using ControlMessage = std::variant<Question, Answer, FailureReport, Departure, Enquiry, Headcount>;
static_assert(std::is_trivially_copyable_v<ControlMessage> && sizeof(ControlMessage) <= 3900);

/** A message as it travels: which one it is, and as much of it as is in use. */
RecycledVector<std::byte> packed(const ControlMessage& message);
/** The message that was packed(); none if these bytes are of none. */
std::optional<ControlMessage> unpacked(std::span<const std::byte> bytes);

}  // namespace tutti
