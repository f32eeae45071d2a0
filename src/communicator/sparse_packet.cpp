// Packs and unpacks groups of elements.
#include "communicator/sparse_packet.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace tutti {
namespace {

constexpr std::size_t kBitsOfByte = 8;
/** The most bytes that a group can take. */
constexpr std::size_t kMostGroupBytes = 1 + kPacketGroup * (sizeof(std::uint32_t) + sizeof(float));
/** That, and the whole words that pack() writes. */
constexpr std::size_t kMostExtraBytes = kMostGroupBytes + sizeof(std::uint64_t);

/** Bytes of `count` numbers of `width` bits. */
std::size_t packed_bytes(std::size_t count, unsigned width) {
  return (count * width + kBitsOfByte - 1) / kBitsOfByte;
}

/** Writes numbers of `width` bits; up to 7 bytes beyond them become zero. */
void pack(std::span<const std::uint32_t> numbers, unsigned width, std::byte* to) {
  std::uint64_t word = 0;
  unsigned bits = 0;  // of `word`; less than 32 between two numbers
  for (const std::uint32_t number : numbers) {
    word |= std::uint64_t{number} << bits;
    bits += width;
    if (bits < 32) continue;
    std::memcpy(to, &word, sizeof(std::uint32_t));
    to += sizeof(std::uint32_t);
    word >>= 32U;
    bits -= 32;
  }
  std::memcpy(to, &word, sizeof(std::uint32_t));
}

/** The number that begins at bit `at`. */
std::uint32_t unpack(const std::byte* from, std::size_t at, std::uint64_t mask) {
  std::uint64_t word = 0;
  std::memcpy(&word, from + at / kBitsOfByte, sizeof(word));
  return static_cast<std::uint32_t>(word >> at % kBitsOfByte & mask);
}

}  // namespace

void PacketWriter::reserve(std::int64_t elements) {
  // The worst are groups of one element: a width and a value for each.
  constexpr std::size_t kMostElementBytes = 1 + sizeof(float);
  memory_.reserve(static_cast<std::size_t>(elements) * kMostElementBytes + kMostExtraBytes);
}

void PacketWriter::clear() {
  size_ = 0;
  sketch_.clear();
}

void PacketWriter::begin_packet(std::int64_t begin) {
  packet_ = {0, static_cast<std::int64_t>(size_)};
  next_ = begin;
}

void PacketWriter::flush() {
  const std::size_t needed = size_ + kMostExtraBytes;
  if (needed > memory_.size()) {
    memory_.resize(std::max(needed, std::min(2 * memory_.size(), memory_.capacity())));
  }
  const auto width = static_cast<unsigned>(std::bit_width(widest_));
  std::byte* to = memory_.data() + size_;
  *to++ = static_cast<std::byte>(width);
  pack({distances_.data(), filled_}, width, to);
  to += packed_bytes(filled_, width);
  std::memcpy(to, values_.data(), filled_ * sizeof(float));
  to += filled_ * sizeof(float);
  size_ = static_cast<std::size_t>(to - memory_.data());
  packet_.count += static_cast<std::int64_t>(filled_);
  filled_ = 0;
  widest_ = 0;
}

PacketSize PacketWriter::end_packet() {
  if (filled_ > 0) flush();
  return {packet_.count, static_cast<std::int64_t>(size_) - packet_.bytes};
}

void PacketCursor::refill() {
  at_ = filled_ = 0;
  while (left_ == 0) {
    if (packets_.empty()) return;
    data_ = packets_.front().data;
    left_ = packets_.front().count;
    base_ = packets_.front().begin;
    packets_ = packets_.subspan(1);
  }
  filled_ = static_cast<std::size_t>(std::min<std::int64_t>(left_, kPacketGroup));
  left_ -= static_cast<std::int64_t>(filled_);
  const auto width = std::to_integer<unsigned>(*data_++);
  const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
  auto index = static_cast<std::uint32_t>(base_);
  for (std::size_t i = 0; i < filled_; ++i) {
    index += unpack(data_, i * width, mask);
    indices_[i] = index++;
  }
  base_ = index;
  data_ += packed_bytes(filled_, width);
  std::memcpy(values_.data(), data_, filled_ * sizeof(float));
  data_ += filled_ * sizeof(float);
}

}  // namespace tutti
