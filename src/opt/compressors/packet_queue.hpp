// The packets of a compressor that are under way, in the order of their buckets.
#pragma once

#include <cstddef>
#include <deque>

namespace tutti {

/** Packets keep their addresses, and their memory is used again. */
template <class Packet>
class PacketQueue {
 public:
  /** Nothing is under way. */
  void clear() { arrived_ = sent_ = 0; }
  /** The one that is being made; once it is sent(), the next. */
  Packet& next() {
    if (sent_ == packets_.size()) packets_.emplace_back();
    return packets_[sent_];
  }
  void sent() { ++sent_; }
  /** The one that was sent first, of those that were not yet asked for. */
  Packet& arrived() { return packets_[arrived_++]; }

 private:
  std::deque<Packet> packets_;
  std::size_t sent_ = 0;
  std::size_t arrived_ = 0;
};

}  // namespace tutti
