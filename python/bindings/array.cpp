// Reads the array protocols of Python.
#include "array.hpp"

#include <pybind11/stl.h>

#include <bit>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "dlpack.hpp"
#include "tutti/error.hpp"

namespace tutti::python {
namespace {

using Shape = std::vector<std::int64_t>;

[[noreturn]] void refuse_dtype(const std::string& name, const std::string& dtype) {
  throw py::type_error(
      name + " has dtype " + dtype +
      ", but must have float32, float64, float16, bfloat16, int32, int64 or uint8");
}

void check_access(const std::string& name, bool read_only, Array::Access access) {
  if (read_only && access == Array::Access::write) {
    throw InvalidArgument(name + " is read-only, but is to be written");
  }
}

[[noreturn]] void refuse_layout(const std::string& name) {
  throw InvalidArgument(name +
                        " is not contiguous: its elements must lie one after the other in "
                        "C order (numpy.ascontiguousarray makes a copy that does)");
}

/** Throws unless there is such a GPU. */
void check_gpu(const std::string& name, int ordinal) {
  if (gpu_count() == 0) {
    throw InvalidArgument(name +
                          " is in the memory of a GPU, but there is none that this process can use "
                          "(TUTTI_LOG=info says why)");
  }
  if (ordinal >= 0 && ordinal < gpu_count()) return;
  throw InvalidArgument(name + " is on GPU " + std::to_string(ordinal) +
                        ", but this process sees GPUs 0 to " + std::to_string(gpu_count() - 1));
}

Device checked_device(const std::string& name, const dlpack::Device& device) {
  switch (device.type) {
    case dlpack::kCpu:
    case dlpack::kCudaHost:
    case dlpack::kRocmHost:
      return {};
    case dlpack::kCuda:
    case dlpack::kCudaManaged:
      check_gpu(name, device.ordinal);
      return {DeviceKind::cuda, device.ordinal};
    default:
      throw InvalidArgument(name + " is in the memory of a device that tutti does not know (type " +
                            std::to_string(device.type) + " of DLPack)");
  }
}

bool is_on_gpu(py::handle object) {
  if (!py::hasattr(object, "__dlpack_device__")) return false;
  const auto type = object.attr("__dlpack_device__")().cast<std::pair<int, int>>().first;
  return type == dlpack::kCuda || type == dlpack::kCudaManaged;
}

/** The `stream` of a __cuda_array_interface__; nothing where its owner asks for no order. */
std::optional<std::intptr_t> stream_of(const py::dict& interface, const std::string& name) {
  if (!interface.contains("stream") || interface["stream"].is_none()) return std::nullopt;
  const auto stream = interface["stream"].cast<std::intptr_t>();
  if (stream == 0) throw InvalidArgument(name + " has stream 0, which its protocol forbids");
  return stream;
}

/** Has the GPU's default stream wait for what `stream` was given so far. */
void come_after(std::intptr_t stream, Device device) {
  if (stream == dlpack::kDefaultStream) return;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the protocol passes addresses as numbers.
  const Stream theirs = Stream::borrow(device, reinterpret_cast<void*>(stream));
  Stream::borrow(device, nullptr).wait(theirs.submit([] {}));
}

/** Whether strides, in units of `step`, are those of C order. */
bool is_contiguous(const Shape& shape, const Shape& strides, std::int64_t step) {
  for (const std::int64_t extent : shape) {
    if (extent == 0) return true;
  }
  for (std::size_t i = shape.size(); i-- > 0; step *= shape[i]) {
    if (shape[i] != 1 && strides[i] != step) return false;
  }
  return true;
}

std::optional<DType> integer_of(std::int64_t bytes) {
  if (bytes == 4) return DType::i32;
  if (bytes == 8) return DType::i64;
  return std::nullopt;
}

/** The DType of a format of the struct module, as buffers have it. */
std::optional<DType> dtype_of_format(std::string_view format, std::int64_t bytes) {
  constexpr bool kLittle = std::endian::native == std::endian::little;
  if (format.size() == 2 &&
      (format[0] == '@' || format[0] == '=' || format[0] == (kLittle ? '<' : '>'))) {
    format.remove_prefix(1);
  }
  if (format.size() != 1) return std::nullopt;
  switch (format[0]) {
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
      return integer_of(bytes);
    default:
      return std::nullopt;
  }
}

/** The DType of a typestr of __array_interface__: byte order, kind and size, as "<f4". */
std::optional<DType> dtype_of_typestr(std::string_view typestr) {
  constexpr bool kLittle = std::endian::native == std::endian::little;
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
  if (type.code == dlpack::kInt) return integer_of(type.bits / 8);
  if (type.code == dlpack::kUInt && type.bits == 8) return DType::u8;
  return std::nullopt;
}

/** bfloat16 is no type of NumPy itself: packages that add it give it this name. */
bool is_bfloat16(py::handle object) {
  const py::object dtype = py::getattr(object, "dtype", py::none());
  return py::str(py::getattr(dtype, "name", py::none())).cast<std::string>() == "bfloat16";
}

std::string dtype_text(py::handle object, const std::string& otherwise) {
  return py::hasattr(object, "dtype") ? py::str(object.attr("dtype")).cast<std::string>()
                                      : otherwise;
}

/** The capsule of an object, with the newest version of DLPack that it knows. */
py::object dlpack_capsule(py::handle object, const std::string& name) try {
  py::dict arguments;
  // Its owner has the GPU's default stream wait for the stream that the array is written on.
  if (is_on_gpu(object)) arguments["stream"] = dlpack::kDefaultStream;
  try {
    return object.attr("__dlpack__")(**arguments, py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")(**arguments);
} catch (py::error_already_set& error) {
  // PyTorch's answer for a tensor on another GPU than its current one.
  if (!error.matches(PyExc_BufferError)) throw;
  throw InvalidArgument(name + " cannot be shared: " + py::str(error.value()).cast<std::string>());
}

}  // namespace

Array::Array(py::handle object, const std::string& name, Access access) {
  if (take_buffer(object, name, access)) return;
  // DLPack first, which tells the GPU and the stream, as __cuda_array_interface__ need not.
  if (!is_on_gpu(object) &&
      (take_cuda_interface(object, name, access) || take_interface(object, name, access))) {
    return;
  }
  if (take_dlpack(object, name, access)) return;
  throw py::type_error(name + " is a " + std::string(Py_TYPE(object.ptr())->tp_name) +
                       ", but must be an array: something with the buffer protocol, "
                       "__array_interface__, __cuda_array_interface__ or __dlpack__");
}

void Array::set_shape(Shape shape) {
  shape_ = std::move(shape);
  view_.count = 1;
  for (const std::int64_t extent : shape_) view_.count *= extent;
}

bool Array::take_buffer(py::handle object, const std::string& name, Access access) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  auto buffer = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_RECORDS_RO) != 0) {
    PyErr_Clear();
    // NumPy has no format for types that others have added to it.
    if (py::hasattr(object, "__array_interface__")) return false;
    refuse_dtype(name, dtype_text(object, "that cannot be told"));
  }
  buffer_.reset(buffer.release());
  const auto dtype =
      dtype_of_format(buffer_->format == nullptr ? "B" : buffer_->format, buffer_->itemsize);
  if (!dtype) refuse_dtype(name, dtype_text(object, std::string("'") + buffer_->format + "'"));
  check_access(name, buffer_->readonly != 0, access);
  if (PyBuffer_IsContiguous(buffer_.get(), 'C') == 0) refuse_layout(name);
  view_ = View(buffer_->buf, 0, *dtype);
  set_shape(Shape(buffer_->shape, buffer_->shape + buffer_->ndim));
  return true;
}

void Array::take_entries(py::handle object, const py::dict& interface, const std::string& name,
                         Access access) {
  auto dtype = dtype_of_typestr(interface["typestr"].cast<std::string>());
  if (is_bfloat16(object)) dtype = DType::bf16;
  if (!dtype) refuse_dtype(name, dtype_text(object, interface["typestr"].cast<std::string>()));
  const auto data = interface["data"].cast<std::pair<std::uintptr_t, bool>>();
  check_access(name, data.second, access);
  auto shape = interface["shape"].cast<Shape>();
  if (interface.contains("strides") && !interface["strides"].is_none() &&
      !is_contiguous(shape, interface["strides"].cast<Shape>(), size_of(*dtype))) {
    refuse_layout(name);
  }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the protocol passes addresses as numbers.
  view_ = View(reinterpret_cast<void*>(data.first), 0, *dtype);
  set_shape(std::move(shape));
  owner_ = py::reinterpret_borrow<py::object>(object);
}

bool Array::take_interface(py::handle object, const std::string& name, Access access) {
  if (!py::hasattr(object, "__array_interface__")) return false;
  take_entries(object, object.attr("__array_interface__"), name, access);
  return true;
}

bool Array::take_cuda_interface(py::handle object, const std::string& name, Access access) {
  if (!py::hasattr(object, "__cuda_array_interface__")) return false;
  const py::dict interface = object.attr("__cuda_array_interface__");
  take_entries(object, interface, name, access);
  if (interface.contains("mask") && !interface["mask"].is_none()) {
    throw InvalidArgument(name + " has a mask, which tutti does not know");
  }
  const auto stream = stream_of(interface, name);
  check_gpu(name, 0);
  view_.device = device_of(view_.data);
  if (view_.device.kind != DeviceKind::cuda) {
    throw InvalidArgument(name + " has an address that is in the memory of no GPU");
  }
  if (stream) come_after(*stream, view_.device);
  return true;
}

bool Array::take_dlpack(py::handle object, const std::string& name, Access access) {
  if (!py::hasattr(object, "__dlpack__")) return false;
  // A tensor that PyTorch differentiates with shares its memory with one that it does not. The
  // capsule frees what it holds, since nobody consumes it.
  const bool detaches = py::hasattr(object, "detach");
  owner_ = dlpack_capsule(
      detaches ? object.attr("detach")() : py::reinterpret_borrow<py::object>(object), name);
  const dlpack::Tensor* tensor = nullptr;
  if (PyCapsule_IsValid(owner_.ptr(), dlpack::VersionedManaged::kCapsule) != 0) {
    const auto* managed = static_cast<const dlpack::VersionedManaged*>(
        PyCapsule_GetPointer(owner_.ptr(), dlpack::VersionedManaged::kCapsule));
    if (managed->major_version != 1)
      throw py::type_error(name + " has an unknown version of DLPack");
    check_access(name, (managed->flags & dlpack::kReadOnly) != 0, access);
    tensor = &managed->tensor;
  } else {
    const auto* managed = static_cast<const dlpack::Managed*>(
        PyCapsule_GetPointer(owner_.ptr(), dlpack::Managed::kCapsule));
    if (managed == nullptr) throw py::error_already_set();
    tensor = &managed->tensor;
  }
  const auto dtype = dtype_of_dlpack(tensor->dtype);
  if (!dtype) refuse_dtype(name, dtype_text(object, "that cannot be told"));
  Shape shape(tensor->shape, tensor->shape + tensor->dimensions);
  if (tensor->strides != nullptr &&
      !is_contiguous(shape, Shape(tensor->strides, tensor->strides + tensor->dimensions), 1)) {
    refuse_layout(name);
  }
  view_ = View(static_cast<std::byte*>(tensor->data) + tensor->byte_offset, 0, *dtype,
               checked_device(name, tensor->device));
  set_shape(std::move(shape));
  return true;
}

py::object to_numpy(Buffer&& buffer, const py::object& shape, const py::object& dtype) {
  const py::object memory = py::cast(std::make_shared<Buffer>(std::move(buffer)));
  return py::module_::import("numpy").attr("ndarray")(shape, py::arg("dtype") = dtype,
                                                      py::arg("buffer") = memory);
}

DType dtype_of(const py::object& numpy_dtype, const std::string& name) {
  if (py::str(numpy_dtype.attr("name")).cast<std::string>() == "bfloat16") return DType::bf16;
  const auto dtype = dtype_of_typestr(numpy_dtype.attr("str").cast<std::string>());
  if (!dtype) refuse_dtype(name, py::str(numpy_dtype));
  return *dtype;
}

void bind_array(py::module_& module) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(module, "Buffer", py::buffer_protocol(),
                                              "Memory that tutti owns; see Communicator.empty().")
      .def_buffer([](Buffer& buffer) {
        return py::buffer_info(static_cast<std::uint8_t*>(buffer.data()), buffer.bytes());
      });
}

}  // namespace tutti::python
