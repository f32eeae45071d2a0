// Element types by the names that other libraries give them.
#include "dtypes.hpp"

#include <bit>

namespace tutti::python {
namespace {

constexpr bool kLittle = std::endian::native == std::endian::little;

std::optional<DType> integer_of(std::int64_t bits) {
  if (bits == 32) return DType::i32;
  if (bits == 64) return DType::i64;
  return std::nullopt;
}

std::optional<DType> dtype_of_code(char code, std::int64_t bytes) {
  switch (code) {
    case 'f':
      return DType::f32;
    case 'd':
      return DType::f64;
    case 'e':
      return DType::f16;
    case 'B':
      return DType::u8;
    case 'i':
    case 'l':
    case 'q':
      return integer_of(bytes * 8);
    default:
      return std::nullopt;
  }
}

/** The name of a dtype of PyTorch without the module, as "float32"; nothing for anything else. */
std::optional<std::string> torch_name_of(const py::object& dtype) {
  const py::handle type = py::type::handle_of(dtype);
  if (!py::str("torch").equal(py::getattr(type, "__module__", py::none()))) return std::nullopt;
  const auto text = py::str(dtype).cast<std::string>();
  constexpr std::string_view kModule = "torch.";
  if (!text.starts_with(kModule)) return std::nullopt;
  return text.substr(kModule.size());
}

[[noreturn]] void refuse_name(const std::string& name, py::handle dtype) {
  throw py::type_error(name + " is " + py::repr(dtype).cast<std::string>() +
                       ", but must be float32, float64, float16, bfloat16, int32, int64 or uint8");
}

py::object numpy_dtype(const py::object& dtype, const std::string& name) try {
  return py::module_::import("numpy").attr("dtype")(dtype);
} catch (py::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw;
  refuse_name(name, dtype);
}

/** NumPy's bfloat16 with the help of ml_dtypes, or None. */
py::object numpy_bfloat16() try {
  return py::module_::import("numpy").attr("dtype")(
      py::module_::import("ml_dtypes").attr("bfloat16"));
} catch (py::error_already_set& error) {
  if (!error.matches(PyExc_Exception)) throw;  // ImportError, or what its import raises
  return py::none();
}

}  // namespace

void refuse_dtype(const std::string& name, const std::string& dtype) {
  throw py::type_error(
      name + " has dtype " + dtype +
      ", but must have float32, float64, float16, bfloat16, int32, int64 or uint8");
}

std::optional<DType> dtype_of_format(std::string_view format, std::int64_t bytes) {
  if (format.size() == 2 &&
      (format[0] == '@' || format[0] == '=' || format[0] == (kLittle ? '<' : '>'))) {
    format.remove_prefix(1);
  }
  if (format.size() != 1) return std::nullopt;
  const auto dtype = dtype_of_code(format[0], bytes);
  return dtype && size_of(*dtype) == bytes ? dtype : std::nullopt;
}

std::optional<DType> dtype_of_typestr(std::string_view typestr) {
  if (typestr.size() < 3) return std::nullopt;
  if (typestr[0] != '|' && typestr[0] != (kLittle ? '<' : '>')) return std::nullopt;
  const std::string_view type = typestr.substr(1);
  if (type == "f4") return DType::f32;
  if (type == "f8") return DType::f64;
  if (type == "f2") return DType::f16;
  if (type == "i4") return DType::i32;
  if (type == "i8") return DType::i64;
  if (type == "u1") return DType::u8;
  return std::nullopt;
}

std::optional<DType> dtype_of_dlpack(const dlpack::DataType& type) {
  if (type.lanes != 1) return std::nullopt;
  if (type.code == dlpack::kFloat && type.bits == 32) return DType::f32;
  if (type.code == dlpack::kFloat && type.bits == 64) return DType::f64;
  if (type.code == dlpack::kFloat && type.bits == 16) return DType::f16;
  if (type.code == dlpack::kBfloat && type.bits == 16) return DType::bf16;
  if (type.code == dlpack::kInt) return integer_of(type.bits);
  if (type.code == dlpack::kUInt && type.bits == 8) return DType::u8;
  return std::nullopt;
}

NamedDType dtype_named(const py::object& dtype, const std::string& name) {
  const auto torch_name = torch_name_of(dtype);
  if (torch_name == "bfloat16") return {DType::bf16, py::none()};
  if (py::isinstance<py::str>(dtype) && dtype.equal(py::str("bfloat16"))) {
    return {DType::bf16, numpy_bfloat16()};
  }
  const py::object numpy =
      torch_name ? numpy_dtype(py::str(*torch_name), name) : numpy_dtype(dtype, name);
  if (py::str("bfloat16").equal(numpy.attr("name"))) return {DType::bf16, numpy};
  const auto known = dtype_of_typestr(numpy.attr("str").cast<std::string>());
  if (!known) refuse_name(name, numpy);
  return {*known, numpy};
}

}  // namespace tutti::python
