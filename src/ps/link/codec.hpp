// What payloads look like between hosts: ids as distances, rows of 16 bits where that was asked
// for.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ps/link/meeting.hpp"
#include "ps/link/message.hpp"
#include "tutti/error.hpp"

namespace tutti::ps {

/** What has come from another host cannot be what was meant. */
class CorruptMessage final : public CommunicationError {
 public:
  using CommunicationError::CommunicationError;
};

/** What a payload consists of: ids (int64), values (f32), which may travel in fewer bits, and bytes
 * that travel as they are. */
struct PayloadShape {
  std::int64_t ids = 0;
  std::int64_t values = 0;
  std::int64_t rest = 0;

  std::int64_t bytes() const { return ids * 8 + values * 4 + rest; }
  std::int64_t values_at() const { return ids * 8; }
  std::int64_t rest_at() const { return ids * 8 + values * 4; }
};

/** Both throw CorruptMessage for headers of which the numbers do not fit each other, or the tables,
 * and for payloads of more than `most` bytes. */
inline constexpr std::int64_t kMostPayload = std::int64_t{1} << 38;
PayloadShape shape_of(const RequestHeader& request, const RowFormat& format,
                      std::int64_t most = kMostPayload);
PayloadShape shape_of(const ReplyHeader& reply, const RequestHeader& request,
                      const RowFormat& format, std::int64_t most = kMostPayload);

/** Bytes of memory for a payload, not initialised, at a multiple of 64. */
class PayloadMemory {
 public:
  PayloadMemory() = default;
  explicit PayloadMemory(std::int64_t bytes);
  std::span<std::byte> bytes() const { return {data_.get(), bytes_}; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte, Free> data_;
  std::size_t bytes_ = 0;
};

/**
 * A payload on its way: values, the rest, then ids. Ids travel as the distance from one to the next
 * in as few groups of 7 bits as it needs (the sign in the lowest bit: LEB128 of zigzag numbers), if
 * that is shorter than 8 bytes each for all of them together; values as `wire` says. What is not
 * coded is sent from where it lies, and received where it belongs.
 */
class TravellingPayload {
 public:
  TravellingPayload() = default;
  /** To be sent; `payload` outlives it. */
  TravellingPayload(const PayloadShape& shape, std::span<const std::byte> payload, WireFormat wire);
  /** To be received: ids of `ids_bytes` coded bytes. Throws CorruptMessage if there are none. */
  TravellingPayload(const PayloadShape& shape, std::int64_t ids_bytes, WireFormat wire);

  std::int64_t ids_bytes() const { return ids_bytes_; }
  /** Where the bytes are, in order. */
  std::span<iovec> pieces() { return pieces_; }
  /** When all of them have come: the payload. Throws CorruptMessage. */
  PayloadMemory decode();

 private:
  PayloadShape shape_;
  WireFormat wire_ = WireFormat::f32;
  std::int64_t ids_bytes_ = 0;
  PayloadMemory payload_;  // of one that is received
  PayloadMemory values_;   // coded
  std::vector<std::byte> ids_;
  std::array<iovec, 3> pieces_{};
};

}  // namespace tutti::ps
