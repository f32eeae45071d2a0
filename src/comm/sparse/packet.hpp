// How elements of a sparse vector travel between hosts.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/sparse/sketch.hpp"
#include "tutti/error.hpp"
#include "tutti/sparse.hpp"

namespace tutti {

/** What another rank has sent cannot be what it meant. */
class CorruptPacket final : public CommunicationError {
 public:
  CorruptPacket(int rank, const std::string& what) : CommunicationError(what), rank_(rank) {}
  /** Who has sent it. */
  int rank() const { return rank_; }

 private:
  int rank_;
};

/**
 * A packet holds elements of a range of the indices in groups of 64: a byte with a width, the
 * distances between the group's indices in as many bits each, then its values. (Delta coding in
 * frames: Lemire and Boytsov, "Decoding billions of integers per second through vectorization",
 * 2015.) Random indices of 1 % take 9.4 bits each, those of a full vector a quarter of a bit.
 */
struct PacketSize {
  std::int64_t count = 0;  ///< elements
  std::int64_t bytes = 0;
};

/** A packet in memory, which is readable for kPacketSlack bytes beyond its end. */
struct SparsePacket {
  const std::byte* data = nullptr;
  PacketSize size;
  std::int64_t begin = 0;  ///< of the range of the indices
  std::int64_t end = 0;    ///< of that range, at most kMostSparse
  int rank = 0;            ///< whose it is, for errors
};
inline constexpr std::int64_t kPacketSlack = 8;
inline constexpr std::size_t kPacketGroup = 64;

/** Throws CorruptPacket unless there can be packets of that size: before memory is taken for
 * one, `data` is not looked at. */
void check_size(const SparsePacket& packet);

/** Writes packets one behind the other into memory that it keeps. */
class PacketWriter {
 public:
  /** Packets of vectors of `elements` will need no more memory, however dense they are. */
  void reserve(std::int64_t elements);
  /** Forgets all packets. */
  void clear();
  /** Starts a packet for indices from `begin` on. */
  void begin_packet(std::int64_t begin);
  /** Indices ascend. */
  void add(std::uint32_t index, float value) {
    const auto distance = static_cast<std::uint32_t>(index - next_);
    next_ = std::int64_t{index} + 1;
    widest_ |= distance;
    distances_[filled_] = distance;
    values_[filled_] = value;
    sketch_.add(index);
    if (++filled_ == kPacketGroup) flush();
  }
  PacketSize end_packet();

  /** All packets so far. */
  std::span<const std::byte> bytes() const { return {memory_.data(), size_}; }
  /** Of all indices since clear(). */
  const SparseSketch& sketch() const { return sketch_; }

 private:
  void flush();

  std::vector<std::byte> memory_;
  std::size_t size_ = 0;
  PacketSize packet_;  // the one begun, without the group begun
  std::int64_t next_ = 0;
  std::uint32_t widest_ = 0;
  std::size_t filled_ = 0;
  std::array<std::uint32_t, kPacketGroup> distances_{};
  std::array<float, kPacketGroup> values_{};
  SparseSketch sketch_;
};

/**
 * Reads the elements of packets whose ranges ascend, from front to back. A packet that is corrupt
 * is never read beyond its end, nor does an index leave its range: the constructor and take_below()
 * throw CorruptPacket instead, at the latest before the first element that is wrong is taken.
 */
class PacketCursor {
 public:
  static constexpr std::int64_t kEnd = kMostSparse;

  explicit PacketCursor(std::span<const SparsePacket> packets) : packets_(packets) { refill(); }

  /** The index of the next element; kEnd if there is none. */
  std::int64_t next() const { return at_ < filled_ ? std::int64_t{indices_[at_]} : kEnd; }

  /** take(index, value) for every element below `end` that has not been taken. */
  template <class Take>
  void take_below(std::int64_t end, const Take& take) {
    while (at_ < filled_) {
      if (indices_[filled_ - 1] < end) {
        for (; at_ < filled_; ++at_) take(indices_[at_], values_[at_]);
        refill();
      } else {
        for (; indices_[at_] < end; ++at_) take(indices_[at_], values_[at_]);
        return;
      }
    }
  }

 private:
  /** Unpacks the next group. */
  void refill();

  std::span<const SparsePacket> packets_;  // those not begun
  const SparsePacket* packet_ = nullptr;   // the one begun
  const std::byte* data_ = nullptr;
  std::int64_t left_ = 0;  // elements of the packet begun that are not unpacked
  std::int64_t base_ = 0;  // the index that a distance of 0 means
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  std::array<std::uint32_t, kPacketGroup> indices_{};
  std::array<float, kPacketGroup> values_{};
};

/** Reads the elements of a SparseView in the same way. */
class ViewCursor {
 public:
  static constexpr std::int64_t kEnd = kMostSparse;

  explicit ViewCursor(const SparseView& view) : view_(view) {}

  std::int64_t next() const { return at_ < view_.count ? std::int64_t{view_.indices[at_]} : kEnd; }

  template <class Take>
  void take_below(std::int64_t end, const Take& take) {
    for (; at_ < view_.count && view_.indices[at_] < end; ++at_) {
      take(view_.indices[at_], view_.values[at_]);
    }
  }

 private:
  SparseView view_;
  std::int64_t at_ = 0;
};

}  // namespace tutti
