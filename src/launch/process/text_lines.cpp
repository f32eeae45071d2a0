// Cuts text into lines.
#include "launch/process/text_lines.hpp"

#include <algorithm>

namespace tutti::launch {
namespace {

constexpr std::size_t kTail = 16 << 10;

}  // namespace

std::string_view visible_part(std::string_view line) {
  const std::size_t end = line.rfind('\r');
  return end == std::string_view::npos ? line : line.substr(end + 1);
}

void Tail::append(std::string_view text) {
  if (text.size() > kTail) {
    whole_ = false;
    end_.clear();
    text.remove_prefix(text.size() - kTail);
  }
  end_.append(text);
  if (end_.size() > 4 * kTail) {
    whole_ = false;
    end_.erase(0, end_.size() - kTail);
  }
}

std::string_view Tail::text() const {
  std::string_view text = end_;
  const std::size_t first_end = text.find('\n');
  if (!whole_ && first_end + 1 < text.size()) text.remove_prefix(first_end + 1);
  return text;
}

std::vector<std::string> last_lines(std::string_view text, std::size_t count) {
  std::vector<std::string> lines;
  if (text.empty()) return lines;
  if (text.ends_with('\n')) text.remove_suffix(1);
  while (lines.size() < count) {
    const std::size_t end = text.rfind('\n');
    const std::size_t begin = end == std::string_view::npos ? 0 : end + 1;
    std::string_view line = text.substr(begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.emplace_back(visible_part(line));
    if (begin == 0) break;
    text = text.substr(0, begin - 1);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace tutti::launch
