// Escapes what JSON does not allow in a string.
#include "base/json.hpp"

#include <array>
#include <cstdio>

namespace tutti {

void append_json(std::string& text, std::string_view value) {
  constexpr unsigned char kFirstPrintable = 0x20;
  text += '"';
  for (const char character : value) {
    const auto byte = static_cast<unsigned char>(character);
    if (character == '"' || character == '\\') {
      text += '\\';
      text += character;
    } else if (byte < kFirstPrintable) {
      std::array<char, 8> escape{};
      std::snprintf(escape.data(), escape.size(), "\\u%04x", byte);
      text += escape.data();
    } else {
      text += character;
    }
  }
  text += '"';
}

}  // namespace tutti
