// What optimisers have in common.
#include "tutti/optimizer.hpp"

#include <memory>
#include <string>

#include "device/arithmetic.hpp"
#include "opt/optimizers/update_checks.hpp"
#include "tutti/adagrad.hpp"
#include "tutti/adam.hpp"
#include "tutti/error.hpp"

namespace tutti {

std::shared_ptr<const void> Optimizer::claim() {
  if (!claim_.expired()) {
    throw InvalidArgument(
        "the optimiser belongs to another DistOpt, with which parameters are registered; each "
        "needs "
        "one of its own, since it keeps momentum and the like of its parameters");
  }
  auto made = std::make_shared<const char>('\0');
  claim_ = made;
  return made;
}

void Optimizer::place(const Stream& stream) {
  if (stream.device().kind == DeviceKind::cpu) return;
  throw InvalidArgument("the optimiser updates CPU memory alone, not that of device cuda:" +
                        std::to_string(stream.device().ordinal));
}

template <class Options>
BuiltInOptimizer<Options>::BuiltInOptimizer(const Options& options)
    : options_(options), arithmetic_(make_arithmetic(Stream())) {}

template <class Options>
void BuiltInOptimizer<Options>::place(const Stream& stream) {
  arithmetic_ = make_arithmetic(stream);
}

template <class Options>
void BuiltInOptimizer<Options>::set_lr(float lr) {
  check_rate("lr", lr);
  options_.lr = lr;
}

template class BuiltInOptimizer<SgdOptions>;
template class BuiltInOptimizer<AdamOptions>;
template class BuiltInOptimizer<AdagradOptions>;

}  // namespace tutti
