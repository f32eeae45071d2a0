// Lists in one word of text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::launch {

/** The items of "a,b,c", also the empty ones; none of an empty text. */
inline std::vector<std::string> split_list(std::string_view text, char separator = ',') {
  std::vector<std::string> items;
  if (text.empty()) return items;
  for (;;) {
    const std::size_t end = text.find(separator);
    items.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return items;
    text.remove_prefix(end + 1);
  }
}

/** "a,b,c". */
template <class Items>
std::string join_list(const Items& items, const char* separator = ",") {
  std::string text;
  bool first = true;
  for (const auto& item : items) {
    if (!first) text += separator;
    first = false;
    text += item;
  }
  return text;
}

}  // namespace tutti::launch
