// Checks that each backward pass emits what the first one emitted, in the same order.
#include "opt/emission_order.hpp"

#include "tutti/error.hpp"

namespace tutti {

EmissionOrder::EmissionOrder(const ParameterTable& table, bool missing_allowed)
    : table_(&table), missing_allowed_(missing_allowed), place_(table.size(), kUnknown) {
  pass_.reserve(table.size());
  begin();
}

void EmissionOrder::begin() {
  emitted_.assign(table_->size(), false);
  pass_.clear();
  next_ = 0;
}

void EmissionOrder::emit(std::size_t index) {
  if (emitted_[index]) {
    throw InvalidArgument(table_->name(index) + " was emitted twice in one backward pass");
  }
  check_place(index);
  emitted_[index] = true;
  pass_.push_back(index);
}

void EmissionOrder::check_place(std::size_t index) {
  const std::size_t place = place_[index];
  if (place == kUnknown) return;  // the first pass has not ended, or left this one out
  if (!missing_allowed_ && place != next_) {
    throw InvalidArgument("the backward pass emitted " + table_->name(index) +
                          " where the first one emitted " + table_->name(first_[next_]));
  }
  if (place < next_) {
    throw InvalidArgument("the backward pass emitted " + table_->name(index) + " after " +
                          table_->name(first_[next_ - 1]) + ", the first one before it");
  }
  next_ = place + 1;
}

void EmissionOrder::end() {
  if (!missing_allowed_ && pass_.size() < table_->size()) {
    std::size_t missing = 0;
    if (first_.empty()) {
      while (emitted_[missing]) ++missing;
    } else {
      missing = first_[next_];
    }
    throw InvalidArgument("the backward pass did not emit " + table_->name(missing) +
                          " (DistOptions::missing_as_zero makes that a zero gradient)");
  }
  if (!first_.empty()) return;
  first_ = pass_;
  for (std::size_t place = 0; place < first_.size(); ++place) place_[first_[place]] = place;
}

}  // namespace tutti
