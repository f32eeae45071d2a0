// Finds names that are nearly those of tutti's variables of the environment.
#include "base/misspelt.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <numeric>
#include <vector>

#include "base/log.hpp"

namespace tutti {
namespace {

constexpr std::string_view kPrefix = "TUTTI_";

/** Letters of `known` that may be wrong: of short names one, as many others are near them. */
constexpr std::size_t most_wrong(std::string_view known) {
  return known.size() - kPrefix.size() <= 5 ? 1 : 2;
}

constexpr std::array<std::string_view, 26> kKnown{
    "TUTTI_TIMEOUT",    "TUTTI_LOG",        "TUTTI_TIMELINE",   "TUTTI_FLIGHT",
    "TUTTI_ISA",        "TUTTI_SPARSE",     "TUTTI_GPU_CHECK",  "TUTTI_SOCKET_IFNAME",
    "TUTTI_HOST_ID",    "TUTTI_DEVICE",     "TUTTI_NCCL_LIB",   "TUTTI_BETWEEN_HOSTS",
    "TUTTI_CUBLAS_LIB", "TUTTI_MNIST_DIR",  "TUTTI_PYTHON",     "TUTTI_JOB_SECRET",
    "TUTTI_SECRET",     "TUTTI_TICKET",     "TUTTI_RANK",       "TUTTI_WORLD_SIZE",
    "TUTTI_LOCAL_RANK", "TUTTI_ROLE",       "TUTTI_LOCAL_SIZE", "TUTTI_ROLE_INDEX",
    "TUTTI_ATTEMPT",    "TUTTI_PROGRESS_FD"};

/** How many letters have to be changed, added or removed to make one of the other (Levenshtein). */
std::size_t letters_between(std::string_view one, std::string_view other) {
  std::vector<std::size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < one.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < other.size(); ++j) {
      const std::size_t changed = diagonal + (one[i] == other[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

bool is_with_more_words(std::string_view name, std::string_view known) {
  return name.size() > known.size() && name.starts_with(known) && name[known.size()] == '_';
}

}  // namespace

std::optional<std::string_view> meant_variable(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  if (std::find(kKnown.begin(), kKnown.end(), name) != kKnown.end()) return std::nullopt;
  const auto distance = [&](std::string_view known) { return letters_between(name, known); };
  const auto* const nearest = std::ranges::min_element(kKnown, {}, distance);
  if (distance(*nearest) <= most_wrong(*nearest)) return *nearest;
  const auto longer = [&](std::string_view known) { return is_with_more_words(name, known); };
  const auto* const shorter = std::find_if(kKnown.begin(), kKnown.end(), longer);
  return shorter == kKnown.end() ? std::nullopt : std::optional(*shorter);
}

std::string about_misspelt_variables(const char* const* entries) {
  std::string text;
  for (; *entries != nullptr; ++entries) {
    const std::string_view entry = *entries;
    const std::string_view name = entry.substr(0, entry.find('='));
    const auto meant = meant_variable(name);
    if (!meant) continue;
    text.append(text.empty() ? "" : "; ").append(name).append(" is set, which is no variable of ");
    text.append("tutti's: is ").append(*meant).append(" meant?");
  }
  return text;
}

void warn_of_misspelt_variables(bool is_first_of_host) {
  static std::once_flag once;
  std::call_once(once, [is_first_of_host] {
    const std::string text = is_first_of_host ? about_misspelt_variables(environ) : "";
    if (!text.empty()) log(LogLevel::warn, text);
  });
}

}  // namespace tutti
