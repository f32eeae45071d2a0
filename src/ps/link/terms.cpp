// Finds the lines that only one side has.
#include "ps/link/terms.hpp"

#include <algorithm>

namespace tutti::ps {
namespace {

/** Lines that come in `others` less often, or not at this place. */
std::string lines_of_one(const std::string& side, const Terms& own, const Terms& others) {
  std::string text;
  for (const std::string& line : own) {
    if (std::count(own.begin(), own.end(), line) > std::count(others.begin(), others.end(), line)) {
      text.append("\n  ").append(side).append(": ").append(line);
    }
  }
  return text;
}

}  // namespace

std::string join_terms(const Terms& terms) {
  std::string text;
  for (const std::string& line : terms) text.append(line).append("\n");
  return text;
}

Terms split_terms(std::string_view text) {
  Terms terms;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    terms.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return terms;
}

std::string compare_terms(const std::string& server, const Terms& servers,
                          const std::string& worker, const Terms& workers) {
  if (servers == workers) return {};
  std::string lines =
      lines_of_one(server, servers, workers) + lines_of_one(worker, workers, servers);
  if (lines.empty()) {
    const auto [one, other] = std::mismatch(servers.begin(), servers.end(), workers.begin());
    lines = "\n  in this order, " + server + ": " + *one + "\n  " + worker + ": " + *other;
  }
  return server + " and " + worker + " were not given the same:" + lines;
}

}  // namespace tutti::ps
