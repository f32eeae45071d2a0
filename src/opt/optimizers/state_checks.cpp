// Refuses what is unknown, missing or of another length, and counts that do not count.
#include "opt/optimizers/state_checks.hpp"

#include <algorithm>
#include <cmath>

#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

template <class Map>
void refuse_others(const std::string& owner, const Map& entries, const char* kind,
                   std::initializer_list<std::string_view> known) {
  for (const auto& [name, value] : entries) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    std::string text = "the state has ";
    text.append(kind).append(" '").append(name).append("', which ").append(owner);
    throw InvalidArgument(text.append(" does not know"));
  }
}

}  // namespace

void refuse_unknown(const std::string& owner, const OptimizerState& state,
                    std::initializer_list<std::string_view> numbers,
                    std::initializer_list<std::string_view> arrays) {
  refuse_others(owner, state.numbers, "a number", numbers);
  refuse_others(owner, state.arrays, "an array", arrays);
}

std::optional<std::int64_t> count_in(const OptimizerState& state, const std::string& name) {
  const auto found = state.numbers.find(name);
  if (found == state.numbers.end()) return std::nullopt;
  constexpr double kMost = 0x1p53;  // up to which a double counts
  const double value = found->second;
  if (!(value >= 0.0 && value <= kMost) || value != std::trunc(value)) {
    throw InvalidArgument("the state's number '" + name + "' is " + number_text(value) +
                          ", but must be a whole number from 0 to 2^53");
  }
  return static_cast<std::int64_t>(value);
}

std::int64_t needed_count_in(const OptimizerState& state, const std::string& name) {
  const std::optional<std::int64_t> count = count_in(state, name);
  if (!count) throw InvalidArgument("the state has no number '" + name + "'");
  return *count;
}

void check_array(const std::string& owner, const OptimizerState& state, const std::string& name,
                 bool wanted, std::int64_t elements) {
  const auto found = state.arrays.find(name);
  if (wanted != (found != state.arrays.end())) {
    std::string text = "the state has ";
    text.append(wanted ? "no" : "an").append(" array '").append(name).append("', which ");
    text.append(owner).append(" with these options ");
    throw InvalidArgument(text.append(wanted ? "needs" : "does not keep"));
  }
  if (wanted && static_cast<std::int64_t>(found->second.size()) != elements) {
    throw InvalidArgument("the state's array '" + name + "' has " +
                          std::to_string(found->second.size()) +
                          " elements, but the parameter space has " + std::to_string(elements));
  }
}

void check_not_negative(const OptimizerState& state, const std::string& name) {
  const std::vector<float>& array = state.arrays.at(name);
  const auto bad = std::find_if(array.begin(), array.end(), [](float x) { return x < 0.0F; });
  if (bad == array.end()) return;
  throw InvalidArgument("element " + std::to_string(bad - array.begin()) +
                        " of the state's array '" + name + "' is " + number_text(*bad) +
                        ", but must not be negative");
}

}  // namespace tutti
