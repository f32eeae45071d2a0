// Output as lines: the end of it, and pieces that end where a character ends.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.hpp"

namespace tutti::launch {

/** What a terminal shows of a line in the end: what follows the last carriage return. */
std::string_view visible_part(std::string_view line);

/** The end of a text that grows. */
class Tail {
 public:
  void append(std::string_view text);
  /** At least the last 16 KiB, from the beginning of a line on if there is one. */
  std::string_view text() const;

 private:
  std::string end_;
  bool whole_ = true;  // nothing was dropped
};

/** The last `count` lines of `text`, of which each is cut to what a terminal shows of it. */
std::vector<std::string> last_lines(std::string_view text, std::size_t count);

/** Makes lines of pieces of text. */
class LineBuffer {
 public:
  /** Gives take(line) each line that `text` completes, without its end; those that are too long
   * are cut. */
  template <class Take>
  void append(std::string_view text, const Take& take) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      if (rest_.empty() && end < kLongest) {  // as a rule: nothing is copied
        std::string_view line = text.substr(0, end);
        if (line.ends_with('\r')) line.remove_suffix(1);
        take(visible_part(line));
        text.remove_prefix(end + 1);
        continue;
      }
      rest_.append(text.substr(0, end));
      if (end != std::string_view::npos) {
        finish(take);
        text.remove_prefix(end + 1);
      } else {
        text = {};
        cut(take);
      }
    }
  }
  /** And what is left at the end. */
  template <class Take>
  void finish(const Take& take) {
    cut(take);
    if (rest_.ends_with('\r')) rest_.pop_back();
    take(visible_part(rest_));
    rest_.clear();
  }
  bool empty() const { return rest_.empty(); }

 private:
  static constexpr std::size_t kLongest = 16 << 10;

  template <class Take>
  void cut(const Take& take) {
    while (rest_.size() > kLongest) {
      const std::size_t bytes = whole_characters(rest_, kLongest);
      take(visible_part(std::string_view(rest_).substr(0, bytes)));
      rest_.erase(0, bytes);
    }
  }

  std::string rest_;
};

}  // namespace tutti::launch
