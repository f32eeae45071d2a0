// Small pieces of text for messages.
#pragma once

#include <chrono>
#include <string>

namespace tutti {

/** "2.5 s". */
inline std::string seconds_text(std::chrono::milliseconds time) {
  const auto tenths = (time.count() + 50) / 100;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " s";
}

}  // namespace tutti
