// Packs and unpacks groups of elements.
#include "comm/sparse/packet.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

namespace tutti {
namespace {

constexpr std::size_t kBitsOfByte = 8;
constexpr unsigned kMostWidth = 32;
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

[[noreturn]] void refuse(const SparsePacket& packet, const std::string& what) {
  throw CorruptPacket(packet.rank, "the packet of indices " + std::to_string(packet.begin) +
                                       " to " + std::to_string(packet.end) + " from rank " +
                                       std::to_string(packet.rank) + " is corrupt: " + what);
}

[[noreturn]] void refuse_group(const SparsePacket& packet, std::int64_t first,
                               const std::string& what) {
  refuse(packet, "the group of its element " + std::to_string(first) + " of " +
                     std::to_string(packet.size.count) + " " + what);
}

/** The number that begins at bit `at`. */
std::uint32_t unpack(const std::byte* from, std::size_t at, std::uint64_t mask) {
  std::uint64_t word = 0;
  std::memcpy(&word, from + at / kBitsOfByte, sizeof(word));
  return static_cast<std::uint32_t>(word >> at % kBitsOfByte & mask);
}

}  // namespace

void check_size(const SparsePacket& packet) {
  const auto& [count, bytes] = packet.size;
  if (count < 0 || count > packet.end - packet.begin) {
    refuse(packet, "it has " + std::to_string(count) + " elements");
  }
  constexpr std::int64_t kGroup = kPacketGroup;
  const std::int64_t groups = (count + kGroup - 1) / kGroup;
  const std::int64_t least = groups + count * std::int64_t{sizeof(float)};
  const std::int64_t most = least + count * std::int64_t{sizeof(std::uint32_t)};
  if (bytes < least || bytes > most) {
    refuse(packet, "it has " + std::to_string(bytes) + " bytes, but its " + std::to_string(count) +
                       " elements take from " + std::to_string(least) + " to " +
                       std::to_string(most));
  }
}

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
    packet_ = packets_.data();
    packets_ = packets_.subspan(1);
    check_size(*packet_);
    data_ = packet_->data;
    left_ = packet_->size.count;
    base_ = packet_->begin;
  }
  // One look at lengths for a whole group, before it is read.
  const std::int64_t first = packet_->size.count - left_;
  const auto count = static_cast<std::size_t>(std::min<std::int64_t>(left_, kPacketGroup));
  left_ -= static_cast<std::int64_t>(count);
  const std::int64_t room = packet_->data + packet_->size.bytes - data_;
  const auto width = std::to_integer<unsigned>(*data_++);  // of the slack, if there is no room
  const auto bytes =
      static_cast<std::int64_t>(1 + packed_bytes(count, width) + count * sizeof(float));
  if (width > kMostWidth)
    refuse_group(*packet_, first, "has distances of " + std::to_string(width) + " bits");
  if (left_ > 0 ? bytes > room : bytes != room) {
    refuse_group(
        *packet_, first,
        "takes " + std::to_string(bytes) + " bytes, and " + std::to_string(room) + " are left");
  }

  const std::uint64_t mask = (std::uint64_t{1} << width) - 1;
  auto index = static_cast<std::uint64_t>(base_);
  for (std::size_t i = 0; i < count; ++i) {
    index += unpack(data_, i * width, mask);
    indices_[i] = static_cast<std::uint32_t>(index++);
  }
  base_ = static_cast<std::int64_t>(index);  // 64 distances of 32 bits do not overflow it
  if (base_ > packet_->end) refuse_group(*packet_, first, "reaches " + std::to_string(base_ - 1));
  data_ += packed_bytes(count, width);
  std::memcpy(values_.data(), data_, count * sizeof(float));
  data_ += count * sizeof(float);
  filled_ = count;
}

}  // namespace tutti
