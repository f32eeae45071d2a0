// Reads PyTorch's tensors without a protocol between.
#include "torch_tensor.hpp"

#include <array>
#include <cstddef>
#include <memory>
#include <string_view>

#include "dtypes.hpp"

namespace tutti::python {
namespace {

/** What is asked of PyTorch, and of a tensor, as objects of Python that are made once. */
struct Torch {
  explicit Torch(const py::module_& torch)
      : tensor(torch.attr("Tensor")),
        parameter(torch.attr("nn").attr("Parameter")),
        strided(torch.attr("strided")) {
    for (std::size_t i = 0; i < dtypes.size(); ++i) {
      const char* const name = names_of(static_cast<DType>(i)).name;
      dtypes.at(i) = py::getattr(torch, name, py::none());  // older ones lack uint16 and more
    }
  }

  py::object tensor;
  py::object parameter;
  py::object strided;
  std::array<py::object, kDTypeCount> dtypes;
  py::str is_cpu{"is_cpu"};
  py::str layout{"layout"};
  py::str dtype{"dtype"};
  py::str shape{"shape"};
  py::str is_contiguous{"is_contiguous"};
  py::str is_neg{"is_neg"};
  py::str is_conj{"is_conj"};
  py::str data_ptr{"data_ptr"};
};

/** Null unless `object` is a tensor of PyTorch itself. */
const Torch* torch_of(py::handle object) {
  const std::string_view type = Py_TYPE(object.ptr())->tp_name;
  if (type != "Tensor" && type != "Parameter") return nullptr;
  static const Torch* torch =
      nullptr;  // lives as long as the interpreter, which it must not outlive
  if (torch == nullptr) {
    const auto found =
        py::reinterpret_steal<py::object>(PyImport_GetModule(py::str("torch").ptr()));
    if (!found) return nullptr;
    torch = std::make_unique<const Torch>(py::reinterpret_borrow<py::module_>(found)).release();
  }
  const py::handle exact = py::type::handle_of(object);
  return exact.is(torch->tensor) || exact.is(torch->parameter) ? torch : nullptr;
}

py::object get_attribute(py::handle object, const py::str& name) {
  py::object value = py::reinterpret_steal<py::object>(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!value) throw py::error_already_set();
  return value;
}

py::object call_method(py::handle object, const py::str& name) {
  py::object value =
      py::reinterpret_steal<py::object>(PyObject_CallMethodNoArgs(object.ptr(), name.ptr()));
  if (!value) throw py::error_already_set();
  return value;
}

std::optional<DType> dtype_of_torch(const Torch& torch, const py::object& dtype) {
  for (std::size_t i = 0; i < torch.dtypes.size(); ++i) {
    if (dtype.is(torch.dtypes.at(i))) return static_cast<DType>(i);
  }
  return std::nullopt;
}

}  // namespace

std::optional<TorchTensor> torch_tensor(py::handle object) try {
  const Torch* const torch = torch_of(object);
  if (torch == nullptr) return std::nullopt;
  const auto yes = [&](const py::object& value) { return value.ptr() == Py_True; };
  if (!yes(get_attribute(object, torch->is_cpu)) ||
      !get_attribute(object, torch->layout).is(torch->strided) ||
      !yes(call_method(object, torch->is_contiguous)) || yes(call_method(object, torch->is_neg)) ||
      yes(call_method(object, torch->is_conj))) {
    return std::nullopt;
  }
  const auto dtype = dtype_of_torch(*torch, get_attribute(object, torch->dtype));
  if (!dtype) return std::nullopt;
  const auto address = call_method(object, torch->data_ptr).cast<std::uintptr_t>();
  if (address == 0) return std::nullopt;  // empty, or its storage was given back
  return TorchTensor{address, *dtype, numbers_of(get_attribute(object, torch->shape), "shape")};
} catch (py::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw;
  return std::nullopt;  // what it is, DLPack will say
}

}  // namespace tutti::python
