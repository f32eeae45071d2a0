// Checks that each backward pass emits what the first one emitted, in the same order.
#pragma once

#include <cstddef>
#include <vector>

#include "opt/parameter_table.hpp"

namespace tutti {

/**
 * The order in which backward passes emit the parameters of a table, which must outlive this. The
 * first pass that ends well sets it.
 */
class EmissionOrder {
 public:
  explicit EmissionOrder(const ParameterTable& table, bool missing_allowed);

  /** A pass begins; an earlier one that did not end is forgotten. */
  void begin();
  /** Parameter `index` is emitted. Throws InvalidArgument if that is twice or out of order. */
  void emit(std::size_t index);
  /** The pass ends. Throws InvalidArgument naming the first parameter that is missing, if any. */
  void end();

 private:
  static constexpr std::size_t kUnknown = static_cast<std::size_t>(-1);

  void check_place(std::size_t index);

  const ParameterTable* table_;
  bool missing_allowed_;
  std::vector<bool> emitted_;
  std::vector<std::size_t> pass_;   // what the present pass has emitted
  std::vector<std::size_t> first_;  // what the first pass emitted; empty until it has ended
  std::vector<std::size_t> place_;  // of each parameter in first_
  std::size_t next_ = 0;            // the place in first_ that comes next
};

}  // namespace tutti
