// What compressors have in common.
#include "tutti/compressor.hpp"

#include "opt/optimizers/state_checks.hpp"

namespace tutti {

void Compressor::load_state(const OptimizerState& state) {
  refuse_unknown("the compressor", state, {}, {});
}

}  // namespace tutti
