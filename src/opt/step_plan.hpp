// What a step of DistOpt is to do, and what is refused of it.
#pragma once

#include <cstdint>
#include <string_view>

#include "opt/compressors/sparse.hpp"
#include "tutti/dist_options.hpp"

namespace tutti {

/** A mode, with the arguments of its method. */
struct StepPlan {
  DistMode mode = DistMode::full;
  std::int64_t bucket_elements = 0;
  bool clipping = false;
  float clip_value = 0.0F;
  double spars = 0.0;
  bool correct = false;

  bool is_top_k() const { return mode == DistMode::top_k; }
  bool is_sparse() const { return is_top_k() || mode == DistMode::threshold; }
};

/** The method of DistOpt that does steps of this mode. */
std::string_view method_of(DistMode mode);

/** What DistOpt::operator() is to do, in buckets of `bucket_elements`. */
StepPlan plan_of(const DistOptions& options, std::int64_t bucket_elements);

/** Throws InvalidArgument unless `spars` is a fraction that top-K can send, or a threshold.
 * `method` is who was called. */
void check_spars(std::string_view method, double spars, bool top_k);
/** Throws InvalidArgument unless a DistOpt of these options can do what is planned. */
void check(std::string_view method, const StepPlan& plan, const DistOptions& options);
/** Throws InvalidArgument, which begins with `who`, unless all options are good. */
void check_options(std::string_view who, const DistOptions& options);

/** What a sparse step sends, after `steps` of them: the density of top-K falls in a warm-up. */
SparseChoice sparse_choice(const StepPlan& plan, const SparseOptions& options, std::int64_t steps,
                           int world_size);

}  // namespace tutti
