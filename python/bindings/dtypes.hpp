// Element types by the names that other libraries give them.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "dlpack.hpp"
#include "tutti/dtype.hpp"

namespace tutti::python {

namespace py = pybind11;

/** What other libraries call a DType. */
struct DTypeNames {
  const char* name;
  const char* typestr;  ///< of __array_interface__; null for bfloat16, which has none there
  dlpack::DataType dlpack;
};
const DTypeNames& names_of(DType dtype);

[[noreturn]] void refuse_dtype(const std::string& name, const std::string& dtype);

/** The DType of a format of the struct module, as buffers have it, of elements of `bytes`. */
std::optional<DType> dtype_of_format(std::string_view format, std::int64_t bytes);
/** The DType of a typestr of __array_interface__: byte order, kind and size, as "<f4". */
std::optional<DType> dtype_of_typestr(std::string_view typestr);
std::optional<DType> dtype_of_dlpack(const dlpack::DataType& type);

/** An element type, and NumPy's dtype for it: None where it has none, which is bfloat16 alone. */
struct NamedDType {
  DType dtype;
  py::object numpy;
};

/**
 * What `dtype` names: a dtype of NumPy, ml_dtypes or PyTorch, or a name such as "bfloat16".
 * bfloat16 is no type of NumPy itself: ml_dtypes adds it, where that is installed; who passes
 * PyTorch's gets None. Throws TypeError, beginning with `name`, if tutti has no such type.
 */
NamedDType dtype_named(const py::object& dtype, const std::string& name);

}  // namespace tutti::python
