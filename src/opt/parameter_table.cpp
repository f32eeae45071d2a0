// The parameters of a DistOpt: who they are, and where they lie in the flat parameter space.
#include "opt/parameter_table.hpp"

#include <algorithm>
#include <functional>
#include <sstream>

#include "base/text.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

std::string elements_at(ConstView view) {
  std::ostringstream text;
  text << view.count << " elements at " << view.data;
  return text.str();
}

/** What keeps `view` from being f32 elements; empty if nothing does. */
std::string fault_of(ConstView view) {
  if (view.dtype != DType::f32) {
    return " has dtype " + std::string(name_of(view.dtype)) + "; an optimiser updates f32";
  }
  if (view.count < 0) return " has " + std::to_string(view.count) + " elements";
  if (view.count > 0 && view.data == nullptr) {
    return " has " + std::to_string(view.count) + " elements at a null address";
  }
  return {};
}

/** What keeps `view` from being rows of `row_elements` in memory of the CPU; empty if nothing does.
 */
std::string fault_of_rows(ConstView view, std::int64_t row_elements) {
  if (row_elements < 1 || view.count % row_elements != 0) {
    return " has " + std::to_string(view.count) + " elements, which are no rows of " +
           std::to_string(row_elements);
  }
  if (view.device.kind != DeviceKind::cpu) {
    return " is on " + device_text(view.device) + ", but rows are in memory of the CPU";
  }
  return {};
}

/** What keeps a gradient of rows from being one of `parameter`; empty if nothing does. */
std::string fault_of_rows(const Gradient& gradient, const Parameter& parameter) {
  const std::int64_t width = gradient.row_elements;
  if (parameter.row_elements != 0 && parameter.row_elements != width) {
    return " has rows of " + std::to_string(width) + " elements, the parameter of " +
           std::to_string(parameter.row_elements);
  }
  std::string fault = fault_of_rows(gradient.values, width);
  if (!fault.empty()) return fault;
  if (parameter.value.count % width != 0) {
    return " has rows of " + std::to_string(width) + " elements, the parameter " +
           std::to_string(parameter.value.count) + " elements";
  }
  const ConstView& rows = gradient.rows;
  if (rows.dtype != DType::i64 || rows.count != gradient.values.count / width) {
    return " has " + std::to_string(rows.count) + " indices of " +
           std::string(name_of(rows.dtype)) + ", but needs " +
           std::to_string(gradient.values.count / width) + " of i64";
  }
  if (rows.device.kind != DeviceKind::cpu) {
    return " has indices on " + device_text(rows.device) + ", but rows are in memory of the CPU";
  }
  if (rows.count > 0 && rows.data == nullptr) {
    return " has " + std::to_string(rows.count) + " indices at a null address";
  }
  const std::int64_t count = parameter.value.count / width;
  const std::span<const std::int64_t> indices(static_cast<const std::int64_t*>(rows.data),
                                              static_cast<std::size_t>(rows.count));
  for (const std::int64_t row : indices) {
    if (row >= 0 && row < count) continue;
    return " has row " + std::to_string(row) + ", the parameter " + std::to_string(count) + " rows";
  }
  return {};
}

}  // namespace

std::string describe(const Parameter& parameter, std::size_t number) {
  if (!parameter.name.empty()) return "parameter '" + parameter.name + "'";
  return "parameter #" + std::to_string(number) + " (" + elements_at(parameter.value) + ")";
}

void check_parameter(const Parameter& parameter, std::size_t number) {
  std::string fault = fault_of(parameter.value);
  if (fault.empty() && parameter.row_elements != 0) {
    fault = fault_of_rows(parameter.value, parameter.row_elements);
  }
  if (!fault.empty()) throw InvalidArgument(describe(parameter, number) + fault);
}

void check_gradient(const Gradient& gradient, const Parameter& parameter, std::size_t number) {
  const ConstView& values = gradient.values;
  std::string fault = fault_of(values);
  if (fault.empty() && gradient.is_whole() && values.count != parameter.value.count) {
    fault = " has " + std::to_string(values.count) + " elements, the parameter " +
            std::to_string(parameter.value.count);
  }
  if (fault.empty() && values.device != parameter.value.device) {
    fault = " is on " + device_text(values.device) + ", the parameter on " +
            device_text(parameter.value.device);
  }
  if (fault.empty() && !gradient.is_whole()) fault = fault_of_rows(gradient, parameter);
  if (!fault.empty()) {
    throw InvalidArgument("the gradient of " + describe(parameter, number) + fault);
  }
}

ParameterTable::ParameterTable(std::span<const Parameter> parameters, Order order) {
  for (std::size_t number = 0; number < parameters.size(); ++number) {
    const Parameter& parameter = parameters[number];
    check_parameter(parameter, number);
    if (parameter.value.count == 0) continue;
    if (!entries_.empty() && parameter.value.device != device()) {
      throw InvalidArgument(describe(parameter, number) + " is on " +
                            device_text(parameter.value.device) + ", " +
                            describe(entries_.front().parameter, entries_.front().number) + " on " +
                            device_text(device()));
    }
    entries_.push_back({parameter, number, elements_});
    elements_ += parameter.value.count;
  }
  refuse_shared_memory();
  if (order == Order::last_first) std::reverse(entries_.begin(), entries_.end());
  for (std::size_t index = 0; index < entries_.size(); ++index) {
    index_of_.emplace(entries_[index].parameter.value.data, index);
  }
}

std::vector<ParameterRange> ParameterTable::ranges() const {
  std::vector<ParameterRange> ranges;
  ranges.reserve(entries_.size());
  for (std::size_t index = 0; index < entries_.size(); ++index) ranges.push_back(range(index));
  return ranges;
}

std::vector<std::int64_t> ParameterTable::row_elements() const {
  std::vector<std::int64_t> result;
  result.reserve(entries_.size());
  for (const Entry& entry : entries_) result.push_back(entry.parameter.row_elements);
  return result;
}

ParameterRange ParameterTable::range(std::size_t index) const {
  const Entry& entry = entries_[index];
  ParameterRange range;
  range.offset = entry.offset;
  range.count = entry.parameter.value.count;
  range.parameter = static_cast<float*>(entry.parameter.value.data);
  return range;
}

std::size_t ParameterTable::find(View parameter) const {
  const auto found = index_of_.find(parameter.data);
  if (found == index_of_.end()) {
    throw InvalidArgument("parameter (" + elements_at(parameter) + ") is not registered");
  }
  const View& known = entries_[found->second].parameter.value;
  if (known.count != parameter.count || known.dtype != parameter.dtype) {
    throw InvalidArgument(name(found->second) + " was registered with " +
                          std::to_string(known.count) + " elements of f32 and now has " +
                          std::to_string(parameter.count) + " of " +
                          std::string(name_of(parameter.dtype)));
  }
  return found->second;
}

void ParameterTable::check_gradient(std::size_t index, const Gradient& gradient) const {
  tutti::check_gradient(gradient, entries_[index].parameter, entries_[index].number);
}

std::string ParameterTable::name(std::size_t index) const {
  return describe(entries_[index].parameter, entries_[index].number);
}

void ParameterTable::refuse_shared_memory() const {
  std::vector<const Entry*> by_address;
  by_address.reserve(entries_.size());
  for (const Entry& entry : entries_) by_address.push_back(&entry);
  const std::less<const void*> below;
  std::sort(by_address.begin(), by_address.end(), [&](const Entry* a, const Entry* b) {
    return below(a->parameter.value.data, b->parameter.value.data);
  });
  for (std::size_t i = 1; i < by_address.size(); ++i) {
    const Entry& low = *by_address[i - 1];
    const Entry& high = *by_address[i];
    const View& memory = low.parameter.value;
    if (!below(high.parameter.value.data, memory.part(memory.count, 0).data)) continue;
    if (high.parameter.value.data == memory.data && high.parameter.value.count == memory.count) {
      throw InvalidArgument(describe(low.parameter, low.number) + " is there twice, as #" +
                            std::to_string(std::min(low.number, high.number)) + " and #" +
                            std::to_string(std::max(low.number, high.number)));
    }
    throw InvalidArgument(describe(low.parameter, low.number) + " and " +
                          describe(high.parameter, high.number) + " share memory");
  }
}

}  // namespace tutti
