// DistOpt: checks its options, and forwards; the work is done in dist_opt_steps.cpp.
#include "tutti/dist_opt.hpp"

#include <string>
#include <utility>

#include "opt/dist_opt_impl.hpp"

namespace tutti {
namespace {

constexpr auto kAsTheyAre = PendingSums::Wire::as_they_are;
constexpr auto kHalf = PendingSums::Wire::half;

/** The size of a bucket in elements, which SINGA's methods call threshold. */
std::int64_t bucket_size(DistMode mode, std::optional<std::int64_t> threshold,
                         const DistOptions& options) {
  if (threshold && *threshold < 1) {
    throw InvalidArgument(std::string(method_of(mode)) + ": threshold is " +
                          std::to_string(*threshold) + "; it must be at least 1");
  }
  return threshold.value_or(options.bucket_elements);
}

/** Checks what all constructors get, before any of them joins a communicator. */
std::shared_ptr<Optimizer> checked(std::shared_ptr<Optimizer> optimizer,
                                   const DistOptions& options) {
  if (!optimizer) throw InvalidArgument("DistOpt: optimizer is null");
  check_options("DistOpt", options);
  return optimizer;
}

}  // namespace

DistOpt::DistOpt(std::shared_ptr<Optimizer> optimizer, const DistOptions& options)
    // Braces: the options are checked before the ranks meet.
    : DistOpt{checked(std::move(optimizer), options), std::make_shared<Communicator>(options.comm),
              options} {}

DistOpt::DistOpt(std::shared_ptr<Optimizer> optimizer, const UniqueId& id, int local_rank,
                 int world_size, const DistOptions& options)
    : DistOpt{checked(std::move(optimizer), options),
              std::make_shared<Communicator>(local_rank, world_size, id, options.comm), options} {}

DistOpt::DistOpt(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<Communicator> communicator,
                 const DistOptions& options) {
  if (!communicator) throw InvalidArgument("DistOpt: communicator is null");
  impl_ = std::make_unique<Impl>(checked(std::move(optimizer), options), std::move(communicator),
                                 options);
}

DistOpt::DistOpt(DistOpt&&) noexcept = default;
DistOpt& DistOpt::operator=(DistOpt&&) noexcept = default;
DistOpt::~DistOpt() = default;

int DistOpt::world_size() const { return communicator().world_size(); }
int DistOpt::local_rank() const { return communicator().local_rank(); }
int DistOpt::global_rank() const { return communicator().global_rank(); }
Communicator& DistOpt::communicator() const { return impl_->communicator(); }

std::vector<View> DistOpt::register_parameters(std::span<const Parameter> parameters) {
  return impl_->register_parameters(parameters);
}

bool DistOpt::is_registered() const { return impl_->is_registered(); }
void DistOpt::release_optimizer() { impl_->release_optimizer(); }

void DistOpt::operator()(const Backward& backward, std::optional<std::int64_t> threshold) {
  const DistOptions& options = impl_->options();
  impl_->train(plan_of(options, bucket_size(options.mode, threshold, options)), backward);
}

void DistOpt::backward_and_update(const Backward& backward, std::optional<std::int64_t> threshold) {
  constexpr DistMode kMode = DistMode::full;
  impl_->train({kMode, bucket_size(kMode, threshold, impl_->options())}, backward);
}

void DistOpt::backward_and_update_half(const Backward& backward,
                                       std::optional<std::int64_t> threshold, bool clipping,
                                       float clip_value) {
  constexpr DistMode kMode = DistMode::half;
  impl_->train({.mode = kMode,
                .bucket_elements = bucket_size(kMode, threshold, impl_->options()),
                .clipping = clipping,
                .clip_value = clip_value},
               backward);
}

void DistOpt::backward_and_partial_update(const Backward& backward,
                                          std::optional<std::int64_t> threshold) {
  constexpr DistMode kMode = DistMode::partial;
  impl_->train({kMode, bucket_size(kMode, threshold, impl_->options())}, backward);
}

void DistOpt::backward_and_sparse_update(const Backward& backward,
                                         std::optional<std::int64_t> threshold, double spars,
                                         bool topK, bool corr) {
  const DistMode mode = topK ? DistMode::top_k : DistMode::threshold;
  impl_->train({.mode = mode,
                .bucket_elements = bucket_size(mode, threshold, impl_->options()),
                .spars = spars,
                .correct = corr},
               backward);
}

void DistOpt::backward_and_custom_update(const Backward& backward,
                                         std::optional<std::int64_t> threshold) {
  constexpr DistMode kMode = DistMode::custom;
  impl_->train({kMode, bucket_size(kMode, threshold, impl_->options())}, backward);
}

void DistOpt::synchronize() { impl_->synchronize(); }

void DistOpt::all_reduce(View tensor) { impl_->sums().start(tensor, kAsTheyAre); }
void DistOpt::all_reduce_half(View tensor) { impl_->sums().start(tensor, kHalf); }

void DistOpt::fused_all_reduce(std::span<const View> tensors, bool send) {
  send ? impl_->sums().send(tensors, kAsTheyAre) : impl_->sums().fill(tensors, kAsTheyAre);
}

void DistOpt::fused_all_reduce_half(std::span<const View> tensors, bool send) {
  send ? impl_->sums().send(tensors, kHalf) : impl_->sums().fill(tensors, kHalf);
}

void DistOpt::sparsification(View tensor, std::optional<View> accumulation, double spars,
                             bool topK) {
  impl_->sums().start_sparse("sparsification", std::span(&tensor, 1), accumulation, {spars, topK});
}

void DistOpt::fused_sparsification(std::span<const View> tensors, std::optional<View> accumulation,
                                   double spars, bool topK) {
  impl_->sums().start_sparse("fused_sparsification", tensors, accumulation, {spars, topK});
}

void DistOpt::wait() { impl_->sums().wait(); }

void DistOpt::update(View parameter, ConstView gradient) { impl_->update(parameter, gradient); }
void DistOpt::step() { impl_->optimizer().step(); }

OptimizerState DistOpt::state() const { return impl_->state(); }
void DistOpt::load_state(const OptimizerState& state) { impl_->load_state(state); }
StepStatistics DistOpt::statistics() const { return impl_->statistics(); }
std::int64_t DistOpt::bytes_per_step() const { return statistics().bytes_sent; }

}  // namespace tutti
