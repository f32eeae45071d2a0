// Makes, prints and parses tickets.
#include "tutti/unique_id.hpp"

#include <algorithm>

#include "base/system.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

constexpr std::string_view kDigits = "0123456789abcdef";

}  // namespace

UniqueId UniqueId::create() {
  std::array<std::byte, kBytes> bytes;
  fill_with_random(bytes, "a UniqueId");
  return UniqueId(bytes);
}

UniqueId UniqueId::parse(std::string_view text) {
  if (text.size() != 2 * kBytes) {
    throw InvalidArgument("the text of a UniqueId has " + std::to_string(text.size()) +
                          " characters, but must have " + std::to_string(2 * kBytes));
  }
  std::array<std::byte, kBytes> bytes;
  for (std::size_t i = 0; i < kBytes; ++i) {
    const auto high = kDigits.find(text[2 * i]);
    const auto low = kDigits.find(text[2 * i + 1]);
    if (high == std::string_view::npos || low == std::string_view::npos) {
      throw InvalidArgument("the text of a UniqueId has '" + std::string(text.substr(2 * i, 2)) +
                            "' at position " + std::to_string(2 * i) +
                            ", but must be lower-case hexadecimal digits");
    }
    bytes[i] = static_cast<std::byte>(high * 16 + low);
  }
  return UniqueId(bytes);
}

std::string UniqueId::to_string() const {
  std::string text;
  text.reserve(2 * kBytes);
  for (const std::byte byte : bytes_) {
    text += kDigits[std::to_integer<std::size_t>(byte) >> 4U];
    text += kDigits[std::to_integer<std::size_t>(byte) & 15U];
  }
  return text;
}

}  // namespace tutti
