// What a host does, and what is done between hosts, for one reduction over all ranks.
#pragma once

#include "comm/layout.hpp"
#include "device/cpu/reduction.hpp"
#include "tutti/dtype.hpp"
#include "tutti/reduce.hpp"

namespace tutti {

/** How contributions are added up inside a host, and the sums of hosts between them. */
struct Stages {
  cpu::Combine inside;
  cpu::Combine between;
};

/**
 * An average is divided once, at the end. Those of 16-bit types travel divided by the ranks of the
 * largest host, which keeps them within the range of the inputs, so that nothing can overflow.
 */
inline Stages stages_of(const Reduce& reduce, DType dtype, const Layout& layout) {
  const cpu::Combine whole = combine_of(reduce, layout.rank_count());
  Stages stages{{whole.kind, whole.factor, 1}, {whole.kind, 1.0, whole.divisor}};
  const bool narrow = dtype == DType::f16 || dtype == DType::bf16;
  if (narrow && reduce.kind == ReduceKind::average) {
    stages.inside.divisor = layout.largest_host();
    stages.between.factor = layout.largest_host();
  }
  return stages;
}

}  // namespace tutti
