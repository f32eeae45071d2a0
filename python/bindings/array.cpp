// Reads the array protocols of Python. What an array's owner gives is believed only once it has
// been checked: a wrong shape is an error that names the array, not a crash.
#include "array.hpp"

#include <memory>
#include <optional>
#include <utility>

#include "array_owner.hpp"
#include "dlpack.hpp"
#include "dtypes.hpp"
#include "errors.hpp"
#include "shape.hpp"
#include "torch_tensor.hpp"
#include "tutti/error.hpp"

namespace tutti::python {
namespace {

void check_access(const std::string& name, bool read_only, Array::Access access) {
  if (read_only && access == Array::Access::write) {
    throw InvalidArgument(name + " is read-only, but is to be written");
  }
}

/** `strides` are in units of `step`. */
void check_layout(const std::string& name, const Shape& shape, const Shape& strides,
                  std::int64_t step) {
  if (strides.size() != shape.size()) {
    throw InvalidArgument(name + " has strides " + text_of(strides) + ", but shape " +
                          text_of(shape));
  }
  if (is_contiguous(shape, strides, step)) return;
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

/** What __dlpack_device__ says, if there is one. */
std::optional<dlpack::Device> dlpack_device(py::handle object, const std::string& name) {
  const py::object method = attribute_of(object, "__dlpack_device__", name);
  if (!method) return std::nullopt;
  const py::object device = ask(name, "__dlpack_device__", [&] { return method(); });
  const std::string what = name + ": its __dlpack_device__()";
  const auto [type, ordinal] = pair_of(device, what, "a tuple (type, number)");
  return dlpack::Device{int32_of(type, what), int32_of(ordinal, what)};
}

bool is_on_gpu(const std::optional<dlpack::Device>& device) {
  return device && (device->type == dlpack::kCuda || device->type == dlpack::kCudaManaged);
}

/** The `stream` of a __cuda_array_interface__; nothing where its owner asks for no order. */
std::optional<std::intptr_t> stream_of(const Interface& interface, const std::string& name) {
  const py::object entry = interface.optional("stream");
  if (!entry) return std::nullopt;
  const std::int64_t stream = integer_of(entry, interface.name_of("stream"));
  if (stream == 0) throw InvalidArgument(name + " has stream 0, which its protocol forbids");
  return static_cast<std::intptr_t>(stream);
}

/** Has the GPU's default stream wait for what `stream` was given so far. */
void come_after(std::intptr_t stream, Device device) {
  if (stream == dlpack::kDefaultStream) return;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the protocol passes addresses as numbers.
  const Stream theirs = Stream::borrow(device, reinterpret_cast<void*>(stream));
  Stream::borrow(device, nullptr).wait(theirs.submit([] {}));
}

/** bfloat16 is no type of NumPy itself: packages that add it give it this name. */
bool is_bfloat16(py::handle object) {
  const py::object dtype = py::getattr(object, "dtype", py::none());
  return py::str("bfloat16").equal(py::getattr(dtype, "name", py::none()));
}

/** How to call the dtype of `object`, for a message. */
std::string dtype_text(py::handle object, const std::string& otherwise) {
  const py::object dtype = py::getattr(object, "dtype", py::none());
  return dtype.is_none() ? otherwise : text_of_str(py::str(dtype));
}

/** PyTorch's views that are conjugated or negated when they are read: their memory is not. */
void refuse_lazy(py::handle tensor, const std::string& name) {
  for (const char* kind : {"neg", "conj"}) {
    const py::object is_set = attribute_of(tensor, ("is_" + std::string(kind)).c_str(), name);
    if (!is_set || !ask(name, "is_neg or is_conj", [&] { return py::bool_(is_set()); })) continue;
    throw InvalidArgument(name +
                          " is a view that PyTorch negates or conjugates when it is read: pass "
                          "the copy that its resolve_" +
                          kind + "() gives");
  }
}

/** The capsule of an object, with the newest version of DLPack that it knows. */
py::object dlpack_capsule(py::handle object, bool on_gpu) {
  py::dict arguments;
  // Its owner has the GPU's default stream wait for the stream that the array is written on.
  if (on_gpu) arguments["stream"] = dlpack::kDefaultStream;
  try {
    return object.attr("__dlpack__")(**arguments, py::arg("max_version") = py::make_tuple(1, 0));
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_TypeError)) throw;
  }
  return object.attr("__dlpack__")(**arguments);
}

/** What a capsule holds that has the name of `Managed`, or null. */
template <class Managed>
const Managed* held_by(const py::object& capsule) {
  if (PyCapsule_IsValid(capsule.ptr(), Managed::kCapsule) == 0) return nullptr;
  return static_cast<const Managed*>(PyCapsule_GetPointer(capsule.ptr(), Managed::kCapsule));
}

/** The tensor in a capsule that __dlpack__ gave. */
const dlpack::Tensor& tensor_in(const py::object& capsule, const std::string& name,
                                Array::Access access) {
  if (const auto* managed = held_by<dlpack::VersionedManaged>(capsule)) {
    if (managed->major_version != 1) {
      throw py::type_error(name + " has version " + std::to_string(managed->major_version) +
                           " of DLPack, but tutti knows version 1");
    }
    check_access(name, (managed->flags & dlpack::kReadOnly) != 0, access);
    return managed->tensor;
  }
  if (const auto* managed = held_by<dlpack::Managed>(capsule)) return managed->tensor;
  refuse_type(name + ": its __dlpack__()", capsule,
              "a capsule that nobody has used, named dltensor or dltensor_versioned");
}

Shape shape_of(const dlpack::Tensor& tensor, const std::string& name) {
  check_dimensions(tensor.dimensions, name);
  if (tensor.dimensions > 0 && tensor.shape == nullptr) {
    throw InvalidArgument(name + " has " + std::to_string(tensor.dimensions) +
                          " dimensions, but no shape");
  }
  return {tensor.shape, tensor.shape + tensor.dimensions};
}

/** Where the elements of a tensor begin. */
std::uintptr_t address_of(const dlpack::Tensor& tensor, const std::string& name) {
  auto address = reinterpret_cast<std::uintptr_t>(tensor.data);
  if (__builtin_add_overflow(address, tensor.byte_offset, &address)) {
    throw InvalidArgument(name + " has byte_offset " + std::to_string(tensor.byte_offset) +
                          ", which leads out of all memory");
  }
  return address;
}

}  // namespace

Array::Array(py::handle object, const std::string& name, Access access) {
  if (take_buffer(object, name, access) || take_torch_tensor(object, name)) return;
  // DLPack first, which tells the GPU and the stream, as __cuda_array_interface__ need not.
  const bool on_gpu = is_on_gpu(dlpack_device(object, name));
  if (!on_gpu &&
      (take_cuda_interface(object, name, access) || take_interface(object, name, access))) {
    return;
  }
  if (take_dlpack(object, name, access, on_gpu)) return;
  throw py::type_error(name + " is a " + std::string(Py_TYPE(object.ptr())->tp_name) +
                       ", but must be an array: something with the buffer protocol, "
                       "__array_interface__, __cuda_array_interface__ or __dlpack__");
}

void Array::set(std::uintptr_t address, DType dtype, Device device, Shape shape,
                const std::string& name) {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the protocols pass addresses as numbers.
  view_ = View(reinterpret_cast<void*>(address), 0, dtype, device);
  shape_ = std::move(shape);
  view_.count = count_of(shape_, size_of(dtype), name + " has shape ");
}

bool Array::take_buffer(py::handle object, const std::string& name, Access access) {
  if (PyObject_CheckBuffer(object.ptr()) == 0) return false;
  auto buffer = std::make_unique<Py_buffer>();
  const bool given = ask(name, "buffer", [&] {
    if (PyObject_GetBuffer(object.ptr(), buffer.get(), PyBUF_RECORDS_RO) == 0) return true;
    const py::error_already_set error;
    // NumPy has no format for types that others have added to it, and CuPy's buffer refuses memory
    // of a GPU.
    if (py::hasattr(object, "__array_interface__") ||
        py::hasattr(object, "__cuda_array_interface__")) {
      return false;
    }
    throw py::error_already_set(error);
  });
  if (!given) return false;
  buffer_.reset(buffer.release());
  const char* const format = buffer_->format == nullptr ? "B" : buffer_->format;
  const auto dtype = dtype_of_format(format, buffer_->itemsize);
  if (!dtype) refuse_dtype(name, dtype_text(object, std::string("'") + format + "'"));
  check_access(name, buffer_->readonly != 0, access);
  check_dimensions(buffer_->ndim, name);
  if (buffer_->ndim > 0 && buffer_->shape == nullptr) {
    throw InvalidArgument(name + " has a buffer without a shape");
  }
  Shape shape(buffer_->shape, buffer_->shape + buffer_->ndim);
  set(reinterpret_cast<std::uintptr_t>(buffer_->buf), *dtype, {}, std::move(shape), name);
  if (buffer_->strides != nullptr) {
    check_layout(name, shape_, Shape(buffer_->strides, buffer_->strides + buffer_->ndim),
                 size_of(*dtype));
  }
  return true;
}

bool Array::take_torch_tensor(py::handle object, const std::string& name) {
  auto tensor = torch_tensor(object);
  if (!tensor) return false;
  set(tensor->address, tensor->dtype, {}, std::move(tensor->shape), name);
  owner_ = py::reinterpret_borrow<py::object>(object);
  return true;
}

/** What both interfaces have. */
void Array::take_entries(py::handle object, const Interface& interface, const std::string& name,
                         Access access) {
  const std::string typestr = interface.typestr();
  auto dtype = dtype_of_typestr(typestr);
  if (is_bfloat16(object)) dtype = DType::bf16;
  if (!dtype) refuse_dtype(name, dtype_text(object, typestr));
  const auto [address, read_only] = interface.data();
  check_access(name, read_only, access);
  Shape shape = numbers_of(interface.entry("shape"), interface.name_of("shape"));
  set(address, *dtype, {}, std::move(shape), name);
  if (const py::object strides = interface.optional("strides")) {
    check_layout(name, shape_, numbers_of(strides, interface.name_of("strides")), size_of(*dtype));
  }
  if (interface.optional("mask")) {
    throw InvalidArgument(name + " has a mask, which tutti does not know");
  }
  owner_ = py::reinterpret_borrow<py::object>(object);
}

bool Array::take_interface(py::handle object, const std::string& name, Access access) {
  constexpr const char* kProtocol = "__array_interface__";
  py::object dictionary = attribute_of(object, kProtocol, name);
  if (!dictionary) return false;
  take_entries(object, Interface(std::move(dictionary), kProtocol, name), name, access);
  check_mapped(reinterpret_cast<std::uintptr_t>(view_.data), view_.bytes(), name);
  return true;
}

bool Array::take_cuda_interface(py::handle object, const std::string& name, Access access) {
  constexpr const char* kProtocol = "__cuda_array_interface__";
  py::object dictionary = attribute_of(object, kProtocol, name);
  if (!dictionary) return false;
  const Interface interface(std::move(dictionary), kProtocol, name);
  take_entries(object, interface, name, access);
  const auto stream = stream_of(interface, name);
  check_gpu(name, 0);
  view_.device = device_of(view_.data);
  if (view_.device.kind != DeviceKind::cuda) {
    throw InvalidArgument(name + " has an address that is in the memory of no GPU");
  }
  if (stream) come_after(*stream, view_.device);
  return true;
}

bool Array::take_dlpack(py::handle object, const std::string& name, Access access, bool on_gpu) {
  if (!attribute_of(object, "__dlpack__", name)) return false;
  auto source = py::reinterpret_borrow<py::object>(object);
  // A tensor that PyTorch differentiates with shares its memory with one that it does not.
  if (const py::object detach = attribute_of(object, "detach", name)) {
    refuse_lazy(object, name);
    source = ask(name, "detach", [&] { return detach(); });
  }
  // The capsule frees what it holds, since nobody consumes it.
  owner_ = ask(name, "__dlpack__", [&] { return dlpack_capsule(source, on_gpu); });
  const dlpack::Tensor& tensor = tensor_in(owner_, name, access);
  const auto dtype = dtype_of_dlpack(tensor.dtype);
  if (!dtype) refuse_dtype(name, dtype_text(object, "that cannot be told"));
  Shape shape = shape_of(tensor, name);
  set(address_of(tensor, name), *dtype, {}, std::move(shape), name);
  if (tensor.strides != nullptr) {
    check_layout(name, shape_, Shape(tensor.strides, tensor.strides + tensor.dimensions), 1);
  }
  view_.device = checked_device(name, tensor.device);
  if (view_.device.kind == DeviceKind::cpu) {
    check_mapped(reinterpret_cast<std::uintptr_t>(view_.data), view_.bytes(), name);
  }
  return true;
}

py::object to_numpy(Buffer&& buffer, const py::object& shape, const py::object& dtype) {
  const py::object memory = py::cast(std::make_shared<Buffer>(std::move(buffer)));
  return py::module_::import("numpy").attr("ndarray")(shape, py::arg("dtype") = dtype,
                                                      py::arg("buffer") = memory);
}

void bind_array(py::module_& module) {
  py::class_<Buffer, std::shared_ptr<Buffer>>(module, "Buffer", py::buffer_protocol(),
                                              "Memory that tutti owns; see Communicator.empty().")
      .def_buffer([](Buffer& buffer) {
        return py::buffer_info(static_cast<std::uint8_t*>(buffer.data()), buffer.bytes());
      });
}

}  // namespace tutti::python
