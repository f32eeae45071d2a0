// DistOpt: SINGA's methods over one pipeline.
#include "tutti/dist_opt.hpp"

#include <exception>
#include <utility>

#include "opt/agreement.hpp"
#include "opt/emission_order.hpp"
#include "opt/parameter_table.hpp"
#include "opt/pending_sums.hpp"
#include "tutti/reducer.hpp"

namespace tutti {
namespace {

/** A model that was registered. */
struct Model {
  Model(ParameterTable table_in, const std::shared_ptr<Communicator>& communicator,
        const DistOptions& options)
      : table(std::move(table_in)),
        order(table, options.missing_as_zero),
        reducer(communicator, table.ranges(), options.bucket_elements) {}

  ParameterTable table;
  EmissionOrder order;
  Reducer reducer;
};

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "unknown error";
  }
}

}  // namespace

class DistOpt::Impl {
 public:
  Impl(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<Communicator> communicator,
       const DistOptions& options)
      : options_(options),
        optimizer_(std::move(optimizer)),
        communicator_(std::move(communicator)),
        sums_(communicator_) {}

  std::vector<View> register_parameters(std::span<const Parameter> parameters);
  void backward_and_update(const Backward& backward);
  void update(View parameter, ConstView gradient);
  void load_state(const OptimizerState& state);

  Optimizer& optimizer() const { return *optimizer_; }
  Communicator& communicator() const { return *communicator_; }
  PendingSums& sums() { return sums_; }
  std::int64_t bytes_per_step() const { return model_ ? model_->reducer.bytes_sent() : 0; }

 private:
  /** A gradient of the first backward pass, where nothing was registered. */
  struct FirstGradient {
    Parameter parameter;
    std::vector<float> gradient;
  };

  void refuse_inside_backward(const char* method) const;
  std::unique_ptr<Model> agree(std::span<const Parameter> parameters, ParameterTable::Order order,
                               Agreement agreement);
  void adopt(std::unique_ptr<Model> model);
  void run(const Backward& backward, const Emit& emit);
  void step(const Backward& backward);
  void first_step(const Backward& backward);
  void give_up(const std::string& reason);

  DistOptions options_;
  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<Communicator> communicator_;
  PendingSums sums_;
  std::unique_ptr<Model> model_;  // once parameters are registered
  bool in_backward_ = false;
  std::exception_ptr emit_error_;  // of the present backward pass, which may have swallowed it
  std::string given_up_;           // why no further step is possible; empty while one is
};

void DistOpt::Impl::refuse_inside_backward(const char* method) const {
  if (!in_backward_) return;
  throw InvalidArgument(std::string(method) + " was called inside a backward pass, which still " +
                        "reads the parameters");
}

std::vector<View> DistOpt::Impl::register_parameters(std::span<const Parameter> parameters) {
  refuse_inside_backward("register_parameters");
  if (model_) {
    throw InvalidArgument("register_parameters: " + std::to_string(model_->table.size()) +
                          " parameters are already registered");
  }
  auto model = agree(parameters, ParameterTable::Order::last_first, Agreement::layout);
  for (const Parameter& parameter : parameters) {
    if (parameter.value.count > 0) communicator_->broadcast(parameter.value, 0);
  }
  adopt(std::move(model));
  std::vector<View> gradients;
  gradients.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    const View& value = parameter.value;
    gradients.push_back(value.count > 0 ? model_->reducer.gradient(model_->table.find(value))
                                        : View());
  }
  return gradients;
}

std::unique_ptr<Model> DistOpt::Impl::agree(std::span<const Parameter> parameters,
                                            ParameterTable::Order order, Agreement agreement) {
  ParameterTable table(parameters, order);
  check_agreement(*communicator_, table, options_.bucket_elements, agreement);
  return std::make_unique<Model>(std::move(table), communicator_, options_);
}

void DistOpt::Impl::adopt(std::unique_ptr<Model> model) {
  optimizer_->resize(model->table.elements());
  model_ = std::move(model);
}

void DistOpt::Impl::backward_and_update(const Backward& backward) {
  refuse_inside_backward("backward_and_update");
  if (!backward) throw InvalidArgument("backward_and_update: backward is an empty function");
  if (!given_up_.empty()) throw CommunicationError(given_up_);
  if (model_) {
    step(backward);
  } else {
    first_step(backward);
  }
  optimizer_->step();
}

/** Runs `backward` with `emit`, and throws what emit threw even if `backward` went on. */
void DistOpt::Impl::run(const Backward& backward, const Emit& emit) {
  emit_error_ = nullptr;
  in_backward_ = true;
  try {
    backward([&](View parameter, ConstView gradient) {
      if (emit_error_) std::rethrow_exception(emit_error_);
      try {
        emit(parameter, gradient);
      } catch (...) {
        emit_error_ = std::current_exception();
        throw;
      }
    });
  } catch (...) {
    in_backward_ = false;
    throw;
  }
  in_backward_ = false;
  if (emit_error_) std::rethrow_exception(std::exchange(emit_error_, nullptr));
}

void DistOpt::Impl::step(const Backward& backward) {
  Model& model = *model_;
  model.order.begin();
  model.reducer.begin();
  try {
    run(backward, [&](View parameter, ConstView gradient) {
      if (parameter.count == 0) return;  // nothing to average, whether emitted or not
      const std::size_t index = model.table.find(parameter);
      model.table.check_gradient(index, gradient);
      model.order.emit(index);
      model.reducer.take(index, gradient);
    });
    model.order.end();
    model.reducer.finish(*optimizer_);
  } catch (...) {
    // The other ranks wait for the buckets that this one will not send. If none is on its way,
    // nothing has happened that another attempt could not repeat.
    if (model.reducer.sending()) give_up(message_of(std::current_exception()));
    throw;
  }
}

void DistOpt::Impl::first_step(const Backward& backward) {
  std::vector<FirstGradient> gradients;
  run(backward, [&](View parameter, ConstView gradient) {
    if (parameter.count == 0) return;
    const Parameter unnamed{parameter, ""};
    check_parameter(unnamed, gradients.size());
    check_gradient(gradient, unnamed, gradients.size());
    const auto* elements = static_cast<const float*>(gradient.data);
    gradients.push_back({unnamed, {elements, elements + gradient.count}});
  });
  std::vector<Parameter> parameters;
  for (const FirstGradient& first : gradients) parameters.push_back(first.parameter);
  adopt(agree(parameters, ParameterTable::Order::as_listed, Agreement::layout_and_values));
  step([&](const Emit& emit) {
    for (FirstGradient& first : gradients) {
      emit(first.parameter.value, std::span<const float>(first.gradient));
    }
  });
}

void DistOpt::Impl::give_up(const std::string& reason) {
  given_up_ = "an earlier step of this DistOpt failed half-way: " + reason;
  communicator_->abort("gave up in the middle of a step: " + reason);
}

void DistOpt::Impl::update(View parameter, ConstView gradient) {
  refuse_inside_backward("update");
  if (sums_.any()) {
    throw InvalidArgument("update: sums are still under way; call wait() first");
  }
  if (!model_) {
    throw InvalidArgument("update: no parameters are registered; call register_parameters()");
  }
  if (parameter.count == 0) return;
  const std::size_t index = model_->table.find(parameter);
  model_->table.check_gradient(index, gradient);
  ParameterRange range = model_->table.range(index);
  range.gradient = static_cast<const float*>(gradient.data);
  range.gradient_scale = 1.0F / static_cast<float>(communicator_->world_size());
  optimizer_->update(std::span(&range, 1));
}

void DistOpt::Impl::load_state(const OptimizerState& state) {
  if (!model_) {
    throw InvalidArgument(
        "load_state: no parameters are registered; call register_parameters() before it");
  }
  optimizer_->load_state(state);
}

namespace {

/** Checks what all constructors get, before any of them joins a communicator. */
std::shared_ptr<Optimizer> checked(std::shared_ptr<Optimizer> optimizer,
                                   const DistOptions& options) {
  if (!optimizer) throw InvalidArgument("DistOpt: optimizer is null");
  if (options.bucket_elements < 1) {
    throw InvalidArgument("DistOpt: bucket_elements is " + std::to_string(options.bucket_elements) +
                          "; it must be at least 1");
  }
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

void DistOpt::backward_and_update(const Backward& backward) {
  impl_->backward_and_update(backward);
}

void DistOpt::all_reduce(View tensor) { impl_->sums().start(tensor); }

void DistOpt::fused_all_reduce(std::span<const View> tensors, bool send) {
  if (send) {
    impl_->sums().send(tensors);
  } else {
    impl_->sums().fill(tensors);
  }
}

void DistOpt::wait() { impl_->sums().wait(); }

void DistOpt::update(View parameter, ConstView gradient) { impl_->update(parameter, gradient); }
void DistOpt::step() { impl_->optimizer().step(); }

OptimizerState DistOpt::state() const { return impl_->optimizer().state(); }
void DistOpt::load_state(const OptimizerState& state) { impl_->load_state(state); }
std::int64_t DistOpt::bytes_per_step() const { return impl_->bytes_per_step(); }

}  // namespace tutti
