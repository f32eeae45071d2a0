// Gives states to Python as dictionaries of NumPy arrays, and checks all of what comes back.
#include "state.hpp"

#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"
#include "tutti/error.hpp"

namespace tutti::python {
namespace {

constexpr const char* kArrays = "arrays";
constexpr const char* kNumbers = "numbers";

/** Floats as a NumPy array of one dimension. */
py::object floats_to_numpy(std::vector<float> values) {
  auto owner = std::make_shared<std::vector<float>>(std::move(values));
  const auto bytes = static_cast<std::int64_t>(owner->size() * sizeof(float));
  float* const data = owner->data();
  return to_numpy(Buffer(data, bytes, std::move(owner)), py::make_tuple(bytes / 4),
                  py::str("float32"));
}

[[noreturn]] void refuse(const std::string& what, py::handle object, const char* wanted) {
  throw InvalidArgument(what + " is a " + Py_TYPE(object.ptr())->tp_name + ", but must be " +
                        wanted);
}

py::dict dict_from(py::handle object, const std::string& what) {
  if (!py::isinstance<py::dict>(object)) refuse(what, object, "a dict");
  return py::reinterpret_borrow<py::dict>(object);
}

py::dict part_of(const py::dict& state, const char* key) {
  if (!state.contains(key)) throw InvalidArgument("state has no '" + std::string(key) + "'");
  return dict_from(state[key], "state['" + std::string(key) + "']");
}

std::string name_from(py::handle key, const std::string& owner) {
  if (!py::isinstance<py::str>(key)) refuse("a key of " + owner, key, "a str");
  Py_ssize_t length = 0;
  const char* const text = PyUnicode_AsUTF8AndSize(key.ptr(), &length);
  if (text == nullptr) {  // half a surrogate pair
    PyErr_Clear();
    throw InvalidArgument("a key of " + owner + " is not valid Unicode");
  }
  return {text, static_cast<std::size_t>(length)};
}

std::vector<float> floats_from(py::handle object, const std::string& what) {
  try {
    const Array array(object, what, Array::Access::read);
    const View& view = array.view();
    if (view.device.kind == DeviceKind::cuda || view.dtype != DType::f32 ||
        array.shape().size() != 1) {
      throw InvalidArgument(what + " must be float32, in CPU memory, of one dimension");
    }
    const auto* values = static_cast<const float*>(view.data);
    return {values, values + view.count};
  } catch (const py::builtin_exception& error) {
    throw InvalidArgument(error.what());
  }
}

double number_from(py::handle object, const std::string& what) {
  const double number = PyFloat_AsDouble(object.ptr());
  if (number == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    refuse(what, object, "a number");
  }
  return number;
}

}  // namespace

py::dict state_to_python(OptimizerState state) {
  py::dict arrays;
  for (auto& [name, values] : state.arrays) {
    arrays[py::str(name)] = floats_to_numpy(std::move(values));
  }
  py::dict result;
  result[kArrays] = arrays;
  result[kNumbers] = py::cast(state.numbers);
  return result;
}

OptimizerState state_from_python(py::handle state) {
  const py::dict whole = dict_from(state, "state");
  for (const auto& [key, value] : whole) {
    const std::string name = name_from(key, "state");
    if (name != kArrays && name != kNumbers) {
      throw InvalidArgument("state has '" + name + "', which DistOpt does not know");
    }
  }
  OptimizerState result;
  const auto what = [](const char* part, const std::string& name) {
    return "state['" + std::string(part) + "']['" + name + "']";
  };
  for (const auto& [key, value] : part_of(whole, kArrays)) {
    const std::string name = name_from(key, "state['arrays']");
    result.arrays[name] = floats_from(value, what(kArrays, name));
  }
  for (const auto& [key, value] : part_of(whole, kNumbers)) {
    const std::string name = name_from(key, "state['numbers']");
    result.numbers[name] = number_from(value, what(kNumbers, name));
  }
  return result;
}

}  // namespace tutti::python
