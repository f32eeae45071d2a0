// Small pieces of text for messages.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>

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

}  // namespace tutti
