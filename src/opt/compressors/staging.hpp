// Symmetric memory in which packets wait for their collective and for their owner.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "tutti/communicator.hpp"

namespace tutti {

/**
 * A queue of packets, each contiguous. The last one grows until it is sealed; those before it stay
 * where they are until clear().
 */
class Staging {
 public:
  /** In memory of the device of `home`, on which packets are made and read. */
  Staging(std::shared_ptr<Communicator> communicator, Stream home)
      : communicator_(std::move(communicator)), home_(std::move(home)) {}

  /** Before the first packet: has memory for packets of `bytes` together, so that it need not grow.
   * Collective where it has less. */
  void reserve(std::int64_t bytes);
  /** Makes room for `bytes` more in the last packet. Collective where the memory has to grow. */
  std::byte* append(std::int64_t bytes);
  /** The last packet, and how long it is. */
  std::byte* packet() const { return static_cast<std::byte*>(buffer_.data()) + begin_; }
  std::int64_t packet_bytes() const { return end_ - begin_; }
  /** The last packet is complete: a new one begins. */
  void seal();
  /** The sealed packets are of no more use, and nothing works on them. */
  void clear();

 private:
  void grow(std::int64_t bytes);

  std::shared_ptr<Communicator> communicator_;
  Stream home_;
  Buffer buffer_;                 // grows, never shrinks
  std::vector<Buffer> outgrown_;  // smaller ones that hold sealed packets
  std::int64_t begin_ = 0;        // of the last packet, in bytes
  std::int64_t end_ = 0;
};

}  // namespace tutti
