// Reads the numbers that options of a program have.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "base/refuse.hpp"
#include "base/text.hpp"

namespace tutti::bench {

/** What it says of a number that is out of bounds, or none. */
template <class Number>
[[noreturn]] void refuse_number(std::string_view option, std::string_view text, Number least,
                                Number most) {
  const std::string above = " of at least " + number_text(static_cast<double>(least));
  const std::string between = " from " + number_text(static_cast<double>(least)) + " to " +
                              number_text(static_cast<double>(most));
  refuse(option, " has '", text, "', but must be a number",
         most == std::numeric_limits<Number>::max() ? above : between);
}

/** The number that the whole of `text` is, which is what `option` was given. Throws InvalidArgument
 * with both unless it is one from `least` to `most`. */
template <class Number>
Number number_of(std::string_view option, std::string_view text, Number least,
                 Number most = std::numeric_limits<Number>::max()) {
  const auto number = parse_number<Number>(text);
  if (!number || !(*number >= least && *number <= most)) refuse_number(option, text, least, most);
  return *number;
}

/** A number above 0, such as 0.5, but no more than 1e12: what times, rates and shares are. */
inline double positive_of(std::string_view option, std::string_view text, double most = 1e12) {
  const auto number = parse_number<double>(text);
  if (!number || !(*number > 0 && *number <= most)) {
    refuse(option, " has '", text, "', but must be a number above 0, up to ", number_text(most));
  }
  return *number;
}

/** A number of bytes, rows and the like, at most 2^40: "8", "4K", "16M". */
inline std::int64_t count_of(std::string_view option, std::string_view text,
                             std::int64_t least = 1) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const std::int64_t unit = text.ends_with('M') ? 1 << 20 : text.ends_with('K') ? 1 << 10 : 1;
  const std::string_view digits = text.substr(0, text.size() - (unit > 1 ? 1 : 0));
  const auto number = parse_number<std::int64_t>(digits);
  if (!number || *number < least || *number > kMost / unit) {
    refuse(option, " has '", text, "', but must be a number such as 8, 4K or 16M");
  }
  return *number * unit;
}

}  // namespace tutti::bench
