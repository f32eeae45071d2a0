// How a long message is cut, so that hosts can work on some of it while the rest travels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace tutti {

/**
 * A message in segments, one after the other, each in a shard for each owner, of whole cache lines,
 * and each shard in windows: the same number in all segments, fewer in the last.
 */
class Segments {
 public:
  /** `windows` of `window` bytes, whole cache lines, are a shard of a segment. */
  Segments(std::int64_t bytes, int owners, std::int64_t window, std::int64_t windows,
           std::int64_t cache_line)
      : bytes_(bytes),
        owners_(owners),
        window_(window),
        windows_(windows),
        line_(cache_line),
        length_(owners * window * windows) {}

  std::int64_t count() const { return (bytes_ + length_ - 1) / length_; }
  std::int64_t begin(std::int64_t segment) const { return std::min(bytes_, segment * length_); }
  /** Windows of a shard in all segments together. */
  std::int64_t windows() const {
    const std::int64_t last = count() - 1;
    return last * windows_ + (share_in(last) + window_ - 1) / window_;
  }
  std::int64_t window() const { return window_; }
  /** Bytes of the longest part there is: of a short message less than a window. */
  std::int64_t longest_part() const { return std::min(window_, share_in(0)); }
  std::int64_t segment_of(std::int64_t number) const { return number / windows_; }
  /** The bytes of `owners` shards of a segment of `bytes` bytes; fewer where it ends. */
  std::int64_t shards(std::int64_t bytes, int owners) const { return owners * share_of(bytes); }
  /** Whether no window of its segment comes before, or after, window `number`. */
  bool is_first(std::int64_t number) const { return number % windows_ == 0; }
  bool is_last(std::int64_t number) const {
    return is_first(number + 1) || number + 1 == windows();
  }

  /** Window `number` of what `owner` has in `data`, which may be shorter than others, or empty. */
  template <class Byte>
  std::span<Byte> part(Byte* data, int owner, std::int64_t number) const {
    const std::int64_t segment = segment_of(number);
    const std::int64_t end = begin(segment + 1);
    const std::int64_t share = share_in(segment);
    const std::int64_t own = std::min(end, begin(segment) + owner * share);
    const std::int64_t own_end = std::min(end, own + share);
    const std::int64_t from = std::min(own_end, own + number % windows_ * window_);
    return {data + from, static_cast<std::size_t>(std::min(window_, own_end - from))};
  }

 private:
  /** The longest shard of a segment. */
  std::int64_t share_in(std::int64_t segment) const {
    return share_of(begin(segment + 1) - begin(segment));
  }
  std::int64_t share_of(std::int64_t bytes) const {
    const std::int64_t lines = (bytes + line_ - 1) / line_;
    return (lines + owners_ - 1) / owners_ * line_;
  }

  std::int64_t bytes_;
  int owners_;
  std::int64_t window_;
  std::int64_t windows_;
  std::int64_t line_;
  std::int64_t length_;
};

}  // namespace tutti
