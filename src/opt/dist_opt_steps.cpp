// The steps of DistOpt: registration, the backward pass, and the modes.
#include <exception>
#include <utility>

#include "comm/record/trace.hpp"
#include "opt/dist_opt_impl.hpp"
#include "opt/home_stream.hpp"

namespace tutti {
namespace {

/** Type and text, of tutti's own. Others may say their type themselves, as those of Python do. */
std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument& exception) {
    return std::string("InvalidArgument: ") + exception.what();
  } catch (const std::exception& exception) {
    return exception.what();
  } catch (...) {
    return "unknown error";
  }
}

/** As what the rows of tables travel in a step; whole gradients do if there is none. */
std::optional<RowWire> row_wire(const StepPlan& plan, const DistOptions& options) {
  if (plan.mode == DistMode::full) return RowWire();
  if (plan.mode != DistMode::half) return std::nullopt;
  return RowWire{options.half, plan.clipping ? plan.clip_value : 0.0F};
}

Buffer copy_of(ConstView view, const Stream& home) {
  if (view.count == 0) return {};
  Buffer copy = home.allocate(view.bytes());
  home.copy(copy.view(view.dtype), view);
  return copy;
}

void refuse_large_buckets(std::string_view method, const Reducer& reducer,
                          std::int64_t bucket_elements, std::int64_t most) {
  if (reducer.memory_elements() <= most) return;
  for (const Bucket& bucket : reducer.cut(bucket_elements)) {
    if (bucket.end - bucket.begin <= most) continue;
    throw InvalidArgument(std::string(method) + ": a bucket has " +
                          std::to_string(bucket.end - bucket.begin) + " elements, and at most " +
                          std::to_string(most) + " can be numbered");
  }
}

}  // namespace

void DistOpt::Impl::refuse_inside_backward(std::string_view method) const {
  if (!in_backward_) return;
  throw InvalidArgument(std::string(method) + " was called inside a backward pass, which still " +
                        "reads the parameters");
}

void DistOpt::Impl::refuse_if_given_up() const {
  if (!given_up_.empty()) throw CommunicationError(given_up_);
}

std::vector<View> DistOpt::Impl::register_parameters(std::span<const Parameter> parameters) {
  refuse_inside_backward("register_parameters");
  if (model_) {
    throw InvalidArgument("register_parameters: " + std::to_string(model_->table.size()) +
                          " parameters are already registered");
  }
  auto model = agree(parameters, ParameterTable::Order::last_first, Agreement::layout);
  for (const Parameter& parameter : parameters) {
    if (parameter.value.count > 0) communicator_->broadcast(parameter.value, 0, model->site.stream);
  }
  model->site.stream.synchronize();
  adopt(std::move(model));
  std::vector<View> gradients;
  gradients.reserve(parameters.size());
  for (const Parameter& parameter : parameters) {
    const View& value = parameter.value;
    const bool has_view = value.count > 0 && parameter.row_elements == 0;
    gradients.push_back(has_view ? model_->reducer.gradient(model_->table.find(value)) : View());
  }
  return gradients;
}

std::unique_ptr<Model> DistOpt::Impl::agree(std::span<const Parameter> parameters,
                                            ParameterTable::Order order, Agreement agreement) {
  ParameterTable table(parameters, order);
  communicator_->check_device(table.device());
  const Stream home = home_stream(options_.stream, table.device());
  auto claim = optimizer_->claim();
  optimizer_->place(home);
  check_agreement(*communicator_, table, options_.bucket_elements, agreement, home);
  return std::make_unique<Model>(std::move(table), std::move(claim), communicator_,
                                 options_.missing_as_zero, home);
}

void DistOpt::Impl::adopt(std::unique_ptr<Model> model) {
  optimizer_->resize(model->table.elements());
  model_ = std::move(model);
}

/** Runs `backward` with `emit`, and throws what emit threw even if `backward` went on. */
void DistOpt::Impl::run(const Backward& backward, const Emit& emit) {
  emit_error_ = nullptr;
  in_backward_ = true;
  try {
    backward([&](View parameter, const Gradient& gradient) {
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
    emit_error_ = nullptr;  // which may hold, by a traceback of Python's, who has this
    throw;
  }
  in_backward_ = false;
  if (emit_error_) std::rethrow_exception(std::exchange(emit_error_, nullptr));
}

void DistOpt::Impl::train(const StepPlan& plan, const Backward& backward) {
  const std::string_view method = method_of(plan.mode);
  check(method, plan, options_);
  refuse_inside_backward(method);
  if (!backward) throw InvalidArgument(std::string(method) + ": backward is an empty function");
  refuse_if_given_up();
  if (!model_) return train_first(plan, backward);

  Model& model = *model_;
  Compressor& compressor = prepare(plan);
  record::Trace* const trace = record::trace_of(*communicator_);
  record::Span shown(trace, "step");
  model.order.begin();
  const bool local = plan.mode == DistMode::partial;
  if (local) {
    model.reducer.begin_locally(compressor);
  } else {
    model.reducer.begin(compressor, plan.bucket_elements, row_wire(plan, options_));
  }
  try {
    {
      const record::Span backward_shown(trace, "backward");
      run(backward, [&](View parameter, const Gradient& gradient) {
        if (parameter.count == 0) return;  // nothing to average, whether emitted or not
        const std::size_t index = model.table.find(parameter);
        model.table.check_gradient(index, gradient);
        model.order.emit(index);
        model.reducer.take(index, gradient);
      });
    }
    model.order.end();
    if (local) {
      model.reducer.finish_locally(*optimizer_, model.partitions.next());
    } else {
      model.reducer.finish(*optimizer_);
    }
    const StepStatistics& statistics = model.reducer.statistics();
    const auto microseconds = [](double seconds) {
      return static_cast<std::int64_t>(seconds * 1e6);
    };
    shown.say({"bytes", statistics.bytes_sent});
    shown.say({"exchange_us", microseconds(statistics.exchange_seconds)});
    shown.say({"overlapped_us", microseconds(statistics.overlap_seconds)});
  } catch (...) {
    // The other ranks wait for the buckets that this one will not send. If none is on its way,
    // nothing has happened that another attempt could not repeat.
    if (model.reducer.sending()) give_up(message_of(std::current_exception()));
    throw;
  }
  optimizer_->step();
  if (local) ++model.partitions.steps;
  if (plan.is_sparse()) ++model.sparse_steps;
}

/** The first step, whose backward pass says which parameters there are: it waits for its end. */
void DistOpt::Impl::train_first(const StepPlan& plan, const Backward& backward) {
  std::vector<FirstGradient> gradients;
  run(backward, [&](View parameter, const Gradient& gradient) {
    if (parameter.count == 0) return;
    const Parameter unnamed{parameter, "", gradient.row_elements};
    check_parameter(unnamed, gradients.size());
    check_gradient(gradient, unnamed, gradients.size());
    const Stream home = home_stream(options_.stream, gradient.values.device);
    gradients.push_back({unnamed, copy_of(gradient.values, home), copy_of(gradient.rows, home)});
  });
  std::vector<Parameter> parameters;
  for (const FirstGradient& first : gradients) parameters.push_back(first.parameter);
  adopt(agree(parameters, ParameterTable::Order::as_listed, Agreement::layout_and_values));
  train(plan, [&](const Emit& emit) {
    for (FirstGradient& first : gradients) {
      const View values = first.values.view(DType::f32);
      const std::int64_t row_elements = first.parameter.row_elements;
      emit(first.parameter.value,
           row_elements == 0 ? Gradient(values)
                             : Gradient(first.rows.view(DType::i64), values, row_elements));
    }
  });
}

void DistOpt::Impl::give_up(const std::string& reason) {
  given_up_ = "an earlier step of this DistOpt failed half-way: " + reason;
  if (model_) model_->claim.reset();
  communicator_->abort("gave up in the middle of a step: " + reason);
}

void DistOpt::Impl::release_optimizer() {
  if (given_up_.empty()) given_up_ = "the optimiser of this DistOpt was released";
  if (model_) model_->claim.reset();
}

// --- The modes ----------------------------------------------------------------------------------

/** Has the compressor of the mode, ready for what the step is to send. */
Compressor& DistOpt::Impl::prepare(const StepPlan& plan) {
  Model& model = *model_;
  switch (plan.mode) {
    case DistMode::full:
      return model.plain;
    case DistMode::half:
      if (!model.half) model.half = std::make_unique<HalfCompressor>(model.site, options_.half);
      model.half->set_limit(plan.clipping ? plan.clip_value : 0.0F);
      return *model.half;
    case DistMode::partial: {
      Partitions& partitions = model.partitions;
      const std::int64_t elements = plan.bucket_elements;
      if (partitions.steps == 0) partitions = {elements, model.reducer.cut(elements), 0};
      return model.plain;
    }
    case DistMode::top_k:
    case DistMode::threshold: {
      const bool on_cpu = model.table.device().kind == DeviceKind::cpu;
      refuse_large_buckets(method_of(plan.mode), model.reducer, plan.bucket_elements,
                           on_cpu ? kMostSparse : kMostSelectable);
      if (!model.sparse) model.sparse = make_sparse_compressor(model.site);
      model.sparse->choose(
          sparse_choice(plan, options_.sparse, model.sparse_steps, communicator_->world_size()));
      return *model.sparse;
    }
    case DistMode::custom:
      if (!model.custom) model.custom = make_custom();
      return *model.custom;
  }
  throw InvalidArgument("a mode of number " + std::to_string(static_cast<int>(plan.mode)));
}

/** The caller's compressor. */
std::unique_ptr<Compressor> DistOpt::Impl::make_custom() const {
  std::unique_ptr<Compressor> made = options_.compressor(model_->site);
  if (!made) throw InvalidArgument("DistOptions::compressor has made no compressor");
  return made;
}

void DistOpt::Impl::synchronize() {
  refuse_inside_backward("synchronize");
  refuse_if_given_up();
  if (!model_) {
    throw InvalidArgument("synchronize: no parameters are registered; call register_parameters()");
  }
  Reducer& reducer = model_->reducer;
  reducer.begin_locally(model_->plain);
  try {
    for (const Bucket& bucket : reducer.cut(options_.bucket_elements)) {
      reducer.average_parameters(bucket);
    }
  } catch (...) {
    give_up(message_of(std::current_exception()));
    throw;
  }
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

}  // namespace tutti
