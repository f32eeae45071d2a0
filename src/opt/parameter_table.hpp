// The parameters of a DistOpt: who they are, and where they lie in the flat parameter space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/gradient.hpp"
#include "tutti/optimizer.hpp"

namespace tutti {

/** How messages call a parameter: by its name, or else as number `number` of its list. */
std::string describe(const Parameter& parameter, std::size_t number);

/** Throws InvalidArgument unless `parameter` is f32 elements, of a table whole rows of the CPU's.
 */
void check_parameter(const Parameter& parameter, std::size_t number);

/** Throws InvalidArgument unless `gradient` is as many f32 elements in memory of the same device,
 * or rows of such a parameter. */
void check_gradient(const Gradient& gradient, const Parameter& parameter, std::size_t number);

/**
 * The registered parameters, except those without elements, in the order in which a backward pass
 * is expected to make their gradients. An index is a place in that order.
 */
class ParameterTable {
 public:
  /** The expected order of gradients: that of the list, or the last parameter first. */
  enum class Order { as_listed, last_first };

  /**
   * The flat parameter space follows the list, whatever `order`. Throws InvalidArgument for
   * anything but f32, for parameters of different devices, and for such that share memory.
   */
  ParameterTable(std::span<const Parameter> parameters, Order order);

  std::size_t size() const { return entries_.size(); }
  /** In whose memory the parameters are; the CPU's if there are none. */
  Device device() const {
    return entries_.empty() ? Device() : entries_.front().parameter.value.device;
  }
  /** Size of the flat parameter space. */
  std::int64_t elements() const { return elements_; }
  /** One range for each parameter, by index, without gradients. */
  std::vector<ParameterRange> ranges() const;
  ParameterRange range(std::size_t index) const;
  /** Parameter::row_elements of each, by index. */
  std::vector<std::int64_t> row_elements() const;
  const std::string& layout(std::size_t index) const { return entries_[index].parameter.layout; }
  /** The index of a parameter. Throws InvalidArgument unless address and size are registered. */
  std::size_t find(View parameter) const;
  /** Throws InvalidArgument unless `gradient` can be that of parameter `index`. */
  void check_gradient(std::size_t index, const Gradient& gradient) const;
  /** For messages. */
  std::string name(std::size_t index) const;

 private:
  struct Entry {
    Parameter parameter;
    std::size_t number = 0;   // in the list that was registered
    std::int64_t offset = 0;  // in the flat parameter space
  };
  void refuse_shared_memory() const;

  std::vector<Entry> entries_;
  std::unordered_map<const void*, std::size_t> index_of_;
  std::int64_t elements_ = 0;
};

}  // namespace tutti
