// Refuses options, sizes and ranges by name and value.
#include "opt/optimizers/update_checks.hpp"

#include <cmath>

#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

void check_range(const ParameterRange& range, std::int64_t elements, std::size_t index) {
  const std::string name = "ranges[" + std::to_string(index) + "]";
  if (range.offset < 0 || range.count < 0 || range.offset > elements ||
      range.count > elements - range.offset) {
    throw InvalidArgument(name + " is " + std::to_string(range.count) + " elements from " +
                          std::to_string(range.offset) + " on, but the parameter space has " +
                          std::to_string(elements));
  }
  if (range.count > 0 && (range.parameter == nullptr || range.gradient == nullptr)) {
    throw InvalidArgument(name + (range.parameter == nullptr ? ".parameter" : ".gradient") +
                          " is null");
  }
}

}  // namespace

void check_rate(const std::string& name, float value) {
  if (std::isfinite(value) && value >= 0.0F) return;
  throw InvalidArgument(name + " is " + number_text(value) +
                        ", but must be finite and not negative");
}

void check_elements(std::int64_t elements) {
  if (elements >= 0) return;
  throw InvalidArgument("elements is " + std::to_string(elements) + ", but must not be negative");
}

void check_ranges(std::span<const ParameterRange> ranges, std::int64_t elements) {
  for (std::size_t i = 0; i < ranges.size(); ++i) check_range(ranges[i], elements, i);
}

}  // namespace tutti
