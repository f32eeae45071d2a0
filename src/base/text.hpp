// Small pieces of text for messages, and a hash of text.
#pragma once

#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "tutti/dtype.hpp"

namespace tutti {

/** "2.5 s". */
inline std::string seconds_text(std::chrono::milliseconds time) {
  const auto tenths = (time.count() + 50) / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

/** The shortest of up to nine digits: "0.05". */
inline std::string number_text(double value) {
  char buffer[32];
  std::snprintf(buffer, sizeof(buffer), "%.9g", value);
  return buffer;
}

/** "the CPU", or "GPU 0". */
inline std::string device_text(Device device) {
  if (device.kind == DeviceKind::cpu) return "the CPU";
  return "GPU " + std::to_string(device.ordinal);
}

/** "rank 3", or "ranks 0, 1". */
template <class Ranks>
std::string ranks_text(const Ranks& ranks) {
  std::string text = std::size(ranks) == 1 ? "rank" : "ranks";
  const char* separator = " ";
  for (const auto rank : ranks) {
    text += std::exchange(separator, ", ") + std::to_string(rank);
  }
  return text;
}

/** The number that the whole of `text` is; nothing if it is none. */
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc{} || stop != end) return std::nullopt;
  return number;
}

/** The most bytes of `text`, up to `limit`, that do not end inside a character of UTF-8. */
constexpr std::size_t whole_characters(std::string_view text, std::size_t limit) {
  const auto continues = [&](std::size_t at) {  // a character that began before
    return (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  if (text.size() <= limit) return text.size();
  // A character has up to three bytes that continue it; more of them are no UTF-8.
  std::size_t end = limit;
  while (end > 0 && limit - end < 4 && continues(end)) --end;
  return end == 0 || continues(end) ? limit : end;
}

/** FNV-1a. */
inline std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325ULL;
  for (const char character : text) {
    hash = (hash ^ static_cast<unsigned char>(character)) * 0x100000001B3ULL;
  }
  return hash;
}

}  // namespace tutti
