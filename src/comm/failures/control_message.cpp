// Makes control messages as short as what they say.
#include "comm/failures/control_message.hpp"

#include <algorithm>

namespace tutti {
namespace {

/** visit(std::span) on each part of a message that travels; false as soon as one of them is. Those
 * that say how long others are come first. */
template <class Message, class Visit>
bool each_part(Message& message, const Visit& visit) {
  const auto one = [](auto& value) { return std::span(&value, 1); };
  const auto first = [](auto& values, std::int32_t count) {
    return std::span(values).first(static_cast<std::size_t>(count));
  };
  const auto fits = [](std::int32_t count, std::size_t most) {
    return count >= 0 && static_cast<std::size_t>(count) <= most;
  };
  using Plain = std::remove_const_t<Message>;
  if constexpr (std::is_same_v<Plain, Answer>) {
    return visit(one(message.number)) && visit(one(message.awaited_count)) &&
           visit(one(message.idle)) && visit(one(message.idle_later)) &&
           fits(message.awaited_count, Answer::kMost) &&
           visit(first(message.entries, message.awaited_count));
  } else if constexpr (std::is_same_v<Plain, FailureReport>) {
    return visit(one(message.kind)) && visit(one(message.ended)) &&
           visit(one(message.rank_count)) && visit(one(message.text_length)) &&
           fits(message.rank_count, FailureReport::kMostRanks) &&
           fits(message.text_length, FailureReport::kMostText) &&
           visit(first(message.ranks, message.rank_count)) &&
           visit(first(message.text, message.text_length));
  } else {
    return visit(one(message));
  }
}

/** The alternative `index` of the message, if it is the one numbered kIndex or a later one. */
template <std::size_t kIndex = 0>
std::optional<ControlMessage> unpacked_as(std::size_t index, std::span<const std::byte> rest) {
  if constexpr (kIndex < std::variant_size_v<ControlMessage>) {
    if (index != kIndex) return unpacked_as<kIndex + 1>(index, rest);
    std::variant_alternative_t<kIndex, ControlMessage> message{};
    const bool is_whole = each_part(message, [&rest](auto part) {
      const std::span<std::byte> to = std::as_writable_bytes(part);
      if (rest.size() < to.size()) return false;
      std::copy_n(rest.begin(), to.size(), to.begin());
      rest = rest.subspan(to.size());
      return true;
    });
    if (is_whole && rest.empty()) return message;
  }
  return std::nullopt;
}

}  // namespace

RecycledVector<std::byte> packed(const ControlMessage& message) {
  RecycledVector<std::byte> bytes{static_cast<std::byte>(message.index())};
  const auto append = [&bytes](auto part) {
    const std::span<const std::byte> from = std::as_bytes(part);
    bytes.insert(bytes.end(), from.begin(), from.end());
    return true;
  };
  std::visit([&](const auto& one) { each_part(one, append); }, message);
  return bytes;
}

std::optional<ControlMessage> unpacked(std::span<const std::byte> bytes) {
  if (bytes.empty()) return std::nullopt;
  return unpacked_as(static_cast<std::size_t>(bytes[0]), bytes.subspan(1));
}

}  // namespace tutti
