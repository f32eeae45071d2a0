// The stream on which memory of a device is worked on.
#pragma once

#include "base/text.hpp"
#include "tutti/device.hpp"
#include "tutti/error.hpp"

namespace tutti {

/**
 * On a GPU `stream` (DistOptions::stream), or the default stream if that was left out; on the CPU
 * the inline stream. Throws InvalidArgument if `stream` is of another device.
 */
inline Stream home_stream(const Stream& stream, Device device) {
  const Device streams = stream.device();
  if (device.kind == DeviceKind::cuda && streams.kind == DeviceKind::cpu) {
    return Stream::borrow(device, nullptr);
  }
  if (device == streams) return device.kind == DeviceKind::cpu ? Stream() : stream;
  throw InvalidArgument("DistOptions::stream is of " + device_text(streams) +
                        ", but the memory is of " + device_text(device));
}

}  // namespace tutti
