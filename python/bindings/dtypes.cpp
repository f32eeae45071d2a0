// Element types by the names that other libraries give them.
#include "dtypes.hpp"

#include <algorithm>
#include <array>
#include <bit>

namespace tutti::python {
namespace {

constexpr bool kLittle = std::endian::native == std::endian::little;

/** In the order of DType. */
constexpr std::array<DTypeNames, kDTypeCount> kNames{{
    {"float32", "<f4", {dlpack::kFloat, 32, 1}},
    {"float64", "<f8", {dlpack::kFloat, 64, 1}},
    {"float16", "<f2", {dlpack::kFloat, 16, 1}},
    {"bfloat16", nullptr, {dlpack::kBfloat, 16, 1}},
    {"int32", "<i4", {dlpack::kInt, 32, 1}},
    {"int64", "<i8", {dlpack::kInt, 64, 1}},
    {"uint8", "|u1", {dlpack::kUInt, 8, 1}},
    {"int8", "|i1", {dlpack::kInt, 8, 1}},
    {"int16", "<i2", {dlpack::kInt, 16, 1}},
    {"uint16", "<u2", {dlpack::kUInt, 16, 1}},
    {"uint32", "<u4", {dlpack::kUInt, 32, 1}},
    {"uint64", "<u8", {dlpack::kUInt, 64, 1}},
    {"bool", "|b1", {dlpack::kBool, 8, 1}},
}};

/** The first DType whose names `is` finds right. */
template <class Is>
std::optional<DType> find_dtype(const Is& is) {
  const auto* const found = std::find_if(kNames.begin(), kNames.end(), is);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<DType>(found - kNames.begin());
}

/** "float32, float64, ... or bool". */
std::string all_names() {
  std::string text = kNames.front().name;
  for (std::size_t i = 1; i < kNames.size(); ++i) {
    text += (i + 1 == kNames.size() ? " or " : ", ") + std::string(kNames[i].name);
  }
  return text;
}

std::optional<DType> integer_of(bool is_signed, std::int64_t bytes) {
  const auto bits = static_cast<std::uint8_t>(8 * bytes);
  return dtype_of_dlpack({is_signed ? dlpack::kInt : dlpack::kUInt, bits, 1});
}

std::optional<DType> dtype_of_code(char code, std::int64_t bytes) {
  switch (code) {
    case 'f':
      return DType::f32;
    case 'd':
      return DType::f64;
    case 'e':
      return DType::f16;
    case '?':
      return DType::boolean;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return integer_of(true, bytes);
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return integer_of(false, bytes);
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
  throw py::type_error(name + " is " + py::repr(dtype).cast<std::string>() + ", but must be " +
                       all_names());
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

const DTypeNames& names_of(DType dtype) { return kNames[static_cast<std::size_t>(dtype)]; }

void refuse_dtype(const std::string& name, const std::string& dtype) {
  throw py::type_error(name + " has dtype " + dtype + ", but must have " + all_names());
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
  return find_dtype([&](const DTypeNames& names) {
    return names.typestr != nullptr && typestr.substr(1) == names.typestr + 1;
  });
}

std::optional<DType> dtype_of_dlpack(const dlpack::DataType& type) {
  return find_dtype([&](const DTypeNames& names) { return names.dlpack == type; });
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
