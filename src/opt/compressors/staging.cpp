// Symmetric memory in which packets wait for their collective and for their owner.
#include "opt/compressors/staging.hpp"

#include <algorithm>

namespace tutti {
namespace {

// Of a packet, in bytes: so much are the gradients of a cache line once they are narrowed to 16
// bits, and the packets of a step lie without gaps.
constexpr std::int64_t kAlignment = 32;
constexpr std::int64_t kSmallestBuffer = 65536;  // bytes

}  // namespace

/** Goes on in a buffer of `bytes`, to which the last packet moves. */
void Staging::grow(std::int64_t bytes) {
  const std::int64_t present = packet_bytes();
  Buffer larger = communicator_->allocate(bytes, home_.device());
  if (present > 0) {
    home_.copy(larger.view(DType::u8).part(0, present),
               buffer_.view(DType::u8).part(begin_, present));
  }
  std::swap(buffer_, larger);
  if (larger.bytes() > 0) outgrown_.push_back(std::move(larger));
  begin_ = 0;
  end_ = present;
}

void Staging::reserve(std::int64_t bytes) {
  if (bytes > buffer_.bytes()) grow(bytes);
}

std::byte* Staging::append(std::int64_t bytes) {
  if (end_ + bytes > buffer_.bytes()) {
    grow(std::max({packet_bytes() + bytes, 2 * buffer_.bytes(), kSmallestBuffer}));
  }
  std::byte* room = static_cast<std::byte*>(buffer_.data()) + end_;
  end_ += bytes;
  return room;
}

void Staging::seal() { begin_ = end_ = (end_ + kAlignment - 1) / kAlignment * kAlignment; }

void Staging::clear() {
  outgrown_.clear();
  if (begin_ == end_) begin_ = end_ = 0;
}

}  // namespace tutti
