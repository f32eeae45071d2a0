// The ranks tell each other how they are set.
#include "comm/agreement.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/environment.hpp"
#include "base/text.hpp"
#include "comm/record/timeline_file.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

struct Variable {
  const char* name;
  std::int64_t (*value)();
  std::string (*text)(std::int64_t value);
};

std::string calls_text(std::int64_t value) {
  return value == std::numeric_limits<std::int64_t>::max() ? "all" : std::to_string(value);
}

std::string timeline_text(std::int64_t value) {
  return value == 0 ? "not set" : "path #" + std::to_string(static_cast<std::uint64_t>(value));
}

constexpr std::array kVariables{
    Variable{"TUTTI_GPU_CHECK", &gpu_calls_to_compare, &calls_text},
    Variable{"TUTTI_TIMELINE", &record::current_timeline_hash, &timeline_text}};
using Values = std::array<std::int64_t, kVariables.size()>;

}  // namespace

std::int64_t gpu_calls_to_compare() {
  constexpr std::int64_t kDefault = 100;
  const auto text = environment("TUTTI_GPU_CHECK");
  if (!text) return kDefault;
  if (*text == "all") return std::numeric_limits<std::int64_t>::max();
  const auto value = parse_number<std::int64_t>(*text);
  if (!value || *value < 0) {
    throw InvalidArgument("TUTTI_GPU_CHECK is '" + *text + "', but must be a number or 'all'");
  }
  return *value;
}

void require_agreement(Transport& transport) {
  Values own{};
  for (std::size_t i = 0; i < own.size(); ++i) own[i] = kVariables[i].value();
  std::vector<Values> all(static_cast<std::size_t>(transport.size()));
  constexpr std::int64_t kCount = std::tuple_size_v<Values>;
  transport.run(Call::all_gather(ConstView(own.data(), kCount, DType::i64),
                                 View(all.data(), kCount * transport.size(), DType::i64)));

  for (std::size_t i = 0; i < kVariables.size(); ++i) {
    std::map<std::int64_t, std::vector<int>> ranks_by_value;
    for (int rank = 0; rank < transport.size(); ++rank) {
      ranks_by_value[all[static_cast<std::size_t>(rank)][i]].push_back(rank);
    }
    if (ranks_by_value.size() == 1) continue;
    std::string text = std::string(kVariables[i].name) + " must be the same on all ranks, but is ";
    const char* separator = "";
    for (const auto& [value, ranks] : ranks_by_value) {
      text += separator + kVariables[i].text(value) + " on " + ranks_text(ranks);
      separator = ", ";
    }
    throw InvalidArgument(text);
  }
}

}  // namespace tutti
