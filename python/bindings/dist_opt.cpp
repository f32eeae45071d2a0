// Keeps alive what DistOpt works on, and passes on what Python gives and what C++ gives back.
#include "dist_opt.hpp"

#include <pybind11/stl.h>

#include <utility>

#include "array_owner.hpp"
#include "device_array.hpp"
#include "errors.hpp"
#include "shape.hpp"
#include "state.hpp"
#include "tutti/error.hpp"

namespace tutti::python {

using Access = Array::Access;

namespace {

std::vector<View> views_of(const std::vector<Array>& arrays) {
  std::vector<View> views;
  for (const Array& array : arrays) views.push_back(array.view());
  return views;
}

std::vector<Array> arrays_of(const py::iterable& objects, Access access) {
  std::vector<Array> arrays;
  for (const py::handle object : objects) {
    arrays.emplace_back(object, "tensor #" + std::to_string(arrays.size()), access);
  }
  return arrays;
}

void move_all(std::vector<Array>& from, std::vector<Array>& to) {
  for (Array& array : from) to.push_back(std::move(array));
  from.clear();
}

bool is_on_gpu(const View& view) { return view.device.kind == DeviceKind::cuda; }

/** A gradient of `dist_opt`, which keeps the memory and needs no Python to be destroyed. */
py::object gradient_array(const View& gradient, const std::shared_ptr<DistOpt>& dist_opt,
                          const std::vector<std::int64_t>& shape) {
  Buffer memory(gradient.data, gradient.bytes(), dist_opt, gradient.device);
  if (is_on_gpu(gradient)) return py::cast(DeviceArray(std::move(memory), shape, DType::f32));
  return to_numpy(std::move(memory), py::cast(shape), py::str("float32"));
}

}  // namespace

py::list PyDistOpt::register_parameters(const py::iterable& parameters,
                                        const std::vector<Trait>& traits) {
  std::vector<Array> arrays;
  std::vector<Parameter> list;
  for (const py::handle item : parameters) {
    const std::string number = "parameter #" + std::to_string(arrays.size());
    auto array = py::reinterpret_borrow<py::object>(item);
    std::string name;
    if (py::isinstance<py::tuple>(item)) {
      const auto [first, second] = pair_of(item, number, "an array, or a pair (name, array)");
      if (!py::isinstance<py::str>(first)) refuse_type(number + ": its name", first, "a str");
      name = text_of_str(first);
      array = second;
    }
    arrays.emplace_back(array, name.empty() ? number : "parameter '" + name + "'", Access::write);
    auto [row, layout] = list.size() < traits.size() ? traits[list.size()] : Trait();
    if (layout.empty()) layout = text_of(arrays.back().shape());
    list.push_back({arrays.back().view(), name, row, std::move(layout)});
  }
  const auto views =
      communicator_->call(arrays, [&](Communicator&) { return get().register_parameters(list); });
  registered_ = true;
  for (Parameter& parameter : list) names_.push_back(std::move(parameter.name));
  py::list gradients;
  for (std::size_t i = 0; i < views.size(); ++i) {
    std::vector<std::int64_t> shape = arrays[i].shape();
    if (arrays[i].view().count > 0 && views[i].count == 0) shape.front() = 0;  // of a table
    gradients.append(gradient_array(views[i], dist_opt_, shape));
  }
  move_all(arrays, parameters_);
  return gradients;
}

void PyDistOpt::check_shapes(const Array& parameter, const Array& gradient, bool by_rows) const {
  std::vector<std::int64_t> wanted = parameter.shape();
  if (by_rows && !wanted.empty() && !gradient.shape().empty()) wanted[0] = gradient.shape()[0];
  if (wanted == gradient.shape()) return;
  std::string name =
      registered_ ? "the parameter" : "parameter #" + std::to_string(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].view().data != parameter.view().data) continue;
    name = i < names_.size() && !names_[i].empty() ? "parameter '" + names_[i] + "'"
                                                   : "parameter #" + std::to_string(i);
  }
  throw InvalidArgument("gradient has shape " + text_of(gradient.shape()) + ", but " + name +
                        " has shape " + text_of(parameter.shape()));
}

void PyDistOpt::emit(const Emit& emit, py::handle parameter, py::handle gradient) {
  Array target(parameter, "parameter", Access::write);
  Array source(gradient, "gradient", Access::read);
  check_shapes(target, source);
  const View target_view = target.view();
  const View source_view = source.view();
  if (is_on_gpu(target_view)) last_parameter_ = py::reinterpret_borrow<py::object>(parameter);
  if (is_on_gpu(source_view)) gradients_.push_back(std::move(source));
  if (!registered_) parameters_.push_back(std::move(target));
  const py::gil_scoped_release released;
  emit(target_view, source_view);
}

void PyDistOpt::emit_rows(const Emit& emit, py::handle parameter, py::handle gradient) {
  const auto [indices, rows] = pair_of(gradient, "gradient", "an array, or a pair (indices, rows)");
  Array target(parameter, "parameter", Access::write);
  const Array places(indices, "indices", Access::read);
  const Array source(rows, "gradient", Access::read);
  check_shapes(target, source, true);
  const View table = target.view();
  const std::int64_t row_elements =
      target.shape().empty() || target.shape()[0] == 0 ? 0 : table.count / target.shape()[0];
  const Gradient of_rows(places.view(), source.view(), row_elements);
  if (!registered_) parameters_.push_back(std::move(target));
  const py::gil_scoped_release released;
  emit(table, of_rows);
}

void PyDistOpt::emit_in(Pass& pass, py::handle parameter, py::handle gradient) {
  if (pass.emit == nullptr) throw InvalidArgument("emit was called after its backward pass");
  try {
    if (py::isinstance<py::tuple>(gradient)) {
      emit_rows(*pass.emit, parameter, gradient);
    } else {
      emit(*pass.emit, parameter, gradient);
    }
  } catch (const Interrupted&) {
    // Python cannot carry it, and blocking() has what the signal's handler raised. On its way
    // through the pass it is what no handler of Exception takes.
    pass.interrupted = std::current_exception();
    PyErr_SetNone(PyExc_KeyboardInterrupt);
    throw py::error_already_set();
  }
}

void PyDistOpt::end_pass() {
  const py::object last = std::exchange(last_parameter_, py::object());
  if (last) const Array ordered(last, "parameter", Access::write);
}

void PyDistOpt::step(const py::function& backward, const Step& method) {
  const Backward run = [&](const Emit& emit_one) {
    const py::gil_scoped_acquire held;
    // Whoever keeps the function must not reach into a pass that has ended.
    const auto pass = std::make_shared<Pass>(Pass{&emit_one, nullptr});
    const py::cpp_function emit_python([this, pass](py::handle parameter, py::handle gradient) {
      emit_in(*pass, parameter, gradient);
    });
    std::exception_ptr failure;
    try {
      backward(emit_python);
      end_pass();
    } catch (py::error_already_set& error) {
      failure = std::make_exception_ptr(PythonError(error));
    } catch (...) {
      failure = std::current_exception();
    }
    pass->emit = nullptr;
    if (pass->interrupted) failure = pass->interrupted;  // whatever Python has made of it
    if (failure) std::rethrow_exception(failure);
  };
  try {
    communicator_->call([&](Communicator&) { method(get(), run); });
    registered_ = true;
    gradients_.clear();
  } catch (...) {
    gradients_.clear();
    registered_ = get().is_registered();  // by a first pass, though what came after it has failed
    if (!registered_) parameters_.clear();
    throw;
  }
}

void PyDistOpt::start(py::handle tensor, const Sum& method) {
  Array array(tensor, "tensor", Access::write);
  communicator_->call([&](Communicator&) { method(get(), array.view()); });
  pending_.push_back(std::move(array));
}

void PyDistOpt::start_fused(const py::iterable& tensors, bool send, const FusedSum& method) {
  std::vector<Array> arrays = arrays_of(tensors, Access::write);
  const std::vector<View> views = views_of(arrays);
  communicator_->call(arrays, [&](Communicator&) { method(get(), views, send); });
  move_all(arrays, filled_);
  if (send) move_all(filled_, pending_);
}

void PyDistOpt::sparsification(const py::iterable& tensors, py::handle accumulation, double spars,
                               bool top_k) {
  std::vector<Array> arrays = arrays_of(tensors, Access::write);
  const std::vector<View> views = views_of(arrays);
  std::optional<View> residual;
  if (!accumulation.is_none()) {
    arrays.emplace_back(accumulation, "accumulation", Access::write);
    residual = arrays.back().view();
  }
  communicator_->call(
      arrays, [&](Communicator&) { get().fused_sparsification(views, residual, spars, top_k); });
  move_all(arrays, pending_);
}

void PyDistOpt::wait() {
  communicator_->call(pending_, [&](Communicator&) { get().wait(); });
  pending_.clear();
}

void PyDistOpt::update(py::handle parameter, py::handle gradient) {
  const Array target(parameter, "parameter", Access::write);
  const Array source(gradient, "gradient", Access::read);
  check_shapes(target, source);
  const auto update = [&] {
    get().update(target.view(), source.view());
    const Device device = target.view().device;
    if (device.kind == DeviceKind::cuda) Stream::borrow(device, nullptr).synchronize();
  };
  blocking(update, [] {});
}

py::dict PyDistOpt::state() const { return state_to_python(get().state()); }

void PyDistOpt::load_state(py::handle state) { get().load_state(state_from_python(state)); }

PyDistOpt::~PyDistOpt() {
  get().release_optimizer();  // gradients that a model holds keep the DistOpt
  if (pending_.empty() || is_inherited()) return;
  bool ended = false;
  const auto wait = [&] {
    get().wait();
    ended = true;
  };
  blocking_at_end(wait, [this] { shared_->abort(Interrupted().what()); });
  if (!ended) communicator_->keep(pending_);
}

void PyDistOpt::close(const std::optional<std::string>& reason) {
  if (pending_.empty()) return;
  {
    const py::gil_scoped_release released;
    try {
      shared_->abort(reason.value_or("its DistOpt was closed"));
      get().wait();  // sums under way end soon after an abort
    } catch (const std::exception&) {
    }
  }
  communicator_->keep(pending_);
  pending_.clear();
}

}  // namespace tutti::python
