// Symmetric memory in which packets wait for their collective and for their owner.
#include "opt/staging.hpp"

#include <algorithm>

namespace tutti {
namespace {

constexpr std::int64_t kAlignment = 64;          // of a packet, in bytes
constexpr std::int64_t kSmallestBuffer = 65536;  // bytes

}  // namespace

std::byte* Staging::append(std::int64_t bytes) {
  if (end_ + bytes > buffer_.bytes()) {
    const std::int64_t present = packet_bytes();
    Buffer larger = communicator_->allocate(
        std::max({present + bytes, 2 * buffer_.bytes(), kSmallestBuffer}), home_.device());
    home_.copy(larger.view(DType::u8).part(0, present),
               buffer_.view(DType::u8).part(begin_, present));
    std::swap(buffer_, larger);
    outgrown_.push_back(std::move(larger));
    begin_ = 0;
    end_ = present;
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
