// What goes on around a long sum on the hosts of its members, segment by segment.
#pragma once

#include <cstdint>
#include <functional>

#include "comm/hosts/group/ahead.hpp"
#include "comm/hosts/group/segments.hpp"

namespace tutti {

/** What a host does with `count` elements from `begin` on, before they travel and when they have
 * come. */
struct Around {
  using Action = std::function<void(std::int64_t begin, std::int64_t count)>;
  Action before = [](std::int64_t, std::int64_t) {};
  Action after = [](std::int64_t, std::int64_t) {};
  Agree agree{};  ///< if the members still have to: first, or behind a window that goes ahead
  /** Where before() puts what is to be added, if not in place: of the first segment, and of all, of
   * which those after it are looked at. Only where AllReduce::adds_from_elsewhere(). */
  const void* first = nullptr;
  const void* others = nullptr;
};

/** Makes the calls of an Around when segments begin and end. */
struct SegmentCalls {
  const Segments& segments;
  const Around& around;
  std::int64_t width;  ///< of an element, in bytes

  void before(std::int64_t window) const {
    if (segments.is_first(window)) call(around.before, segments.segment_of(window));
  }
  void after(std::int64_t window) const {
    if (segments.is_last(window)) call(around.after, segments.segment_of(window));
  }
  void call(const Around::Action& action, std::int64_t segment) const {
    const std::int64_t begin = segments.begin(segment) / width;
    action(begin, segments.begin(segment + 1) / width - begin);
  }
};

}  // namespace tutti
