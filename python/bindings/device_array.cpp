// Gives out memory that NumPy cannot have: https://dmlc.github.io/dlpack/latest/python_spec.html
#include "device_array.hpp"

#include <pybind11/stl.h>

#include <cstring>
#include <utility>

#include "array.hpp"
#include "dlpack.hpp"
#include "dtypes.hpp"
#include "lifetime.hpp"
#include "tutti/error.hpp"

namespace tutti::python {
namespace {

dlpack::Device dlpack_of(Device device) {
  if (device.kind == DeviceKind::cpu) return {dlpack::kCpu, 0};
  return {dlpack::kCuda, device.ordinal};
}

[[noreturn]] void refuse_export(const std::string& reason) {
  PyErr_SetString(PyExc_BufferError, reason.c_str());
  throw py::error_already_set();
}

/** A tensor of DLPack, and what it points to. Freed by whoever took it, on any thread. */
template <class Managed>
struct Export {
  Export(std::shared_ptr<Buffer> memory_in, std::vector<std::int64_t> shape_in, DType dtype)
      : memory(std::move(memory_in)), shape(std::move(shape_in)), strides(shape.size(), 1) {
    for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
    managed.tensor = {memory->data(),
                      dlpack_of(memory->device()),
                      static_cast<std::int32_t>(shape.size()),
                      names_of(dtype).dlpack,
                      shape.data(),
                      strides.data(),
                      0};
    managed.context = this;
    managed.deleter = [](Managed* self) { delete static_cast<Export*>(self->context); };
  }
  Export(const Export&) = delete;
  Export& operator=(const Export&) = delete;
  ~Export() = default;

  std::shared_ptr<Buffer> memory;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;
  Managed managed{};
};

/** Memory of a GPU that goes back when the GPU's default stream is done with it: who takes an array
 * through DLPack frees it with kernels under way, for which ncclMemFree() does not wait. */
struct FreedAfterUse {
  explicit FreedAfterUse(Buffer&& memory_in) : memory(std::move(memory_in)) {}
  FreedAfterUse(const FreedAfterUse&) = delete;
  FreedAfterUse& operator=(const FreedAfterUse&) = delete;
  ~FreedAfterUse() {
    try {
      Stream::borrow(memory.device(), nullptr).synchronize();
    } catch (const std::exception&) {  // the GPU has failed: nothing runs there any more
    }
  }

  Buffer memory;
};

std::shared_ptr<Buffer> freed_after_use(Buffer&& memory) {
  if (memory.device().kind == DeviceKind::cpu) return own<Buffer>(std::move(memory));
  const auto owner = own<FreedAfterUse>(std::move(memory));
  return {owner, &owner->memory};
}

/** Frees what nobody took: who takes it gives the capsule another name. */
template <class Managed>
void free_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, Managed::kCapsule) == 0) return;
  auto* managed = static_cast<Managed*>(PyCapsule_GetPointer(capsule, Managed::kCapsule));
  managed->deleter(managed);
}

/** Has `stream` of the caller's wait for the GPU's default stream, on which tutti's work ends. */
void let_wait(const py::object& stream, Device device) {
  if (stream.is_none() || device.kind == DeviceKind::cpu) return;
  const auto number = stream.cast<std::intptr_t>();
  if (number == 0 || number < -1) {
    throw InvalidArgument("stream is " + std::to_string(number) +
                          ", but must be -1, 1, 2 or the address of a stream");
  }
  if (number == -1 || number == dlpack::kDefaultStream) return;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the protocol passes addresses as numbers.
  const Stream theirs = Stream::borrow(device, reinterpret_cast<void*>(number));
  theirs.wait(Stream::borrow(device, nullptr).submit([] {}));
}

}  // namespace

std::string text_of(Device device) {
  if (device.kind == DeviceKind::cpu) return "cpu";
  return "cuda:" + std::to_string(device.ordinal);
}

DeviceArray::DeviceArray(Buffer&& memory, std::vector<std::int64_t> shape, DType dtype)
    : memory_(freed_after_use(std::move(memory))), shape_(std::move(shape)), dtype_(dtype) {}

py::dict DeviceArray::cuda_array_interface() const {
  if (device().kind == DeviceKind::cpu) {
    throw py::attribute_error("__cuda_array_interface__ is of arrays on GPUs; use DLPack");
  }
  if (names_of(dtype_).typestr == nullptr) {
    throw py::attribute_error("__cuda_array_interface__ has no bfloat16; use DLPack");
  }
  py::dict interface;
  interface["shape"] = py::tuple(py::cast(shape_));
  interface["typestr"] = names_of(dtype_).typestr;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the protocol passes addresses as numbers.
  interface["data"] = py::make_tuple(reinterpret_cast<std::uintptr_t>(memory_->data()), false);
  interface["strides"] = py::none();
  interface["version"] = 3;
  interface["stream"] = dlpack::kDefaultStream;
  return interface;
}

py::tuple DeviceArray::dlpack_device() const {
  const dlpack::Device own = dlpack_of(device());
  return py::make_tuple(own.type, own.ordinal);
}

template <class Managed>
py::object DeviceArray::capsule() const {
  auto owner = std::make_unique<Export<Managed>>(memory_, shape_, dtype_);
  if constexpr (std::is_same_v<Managed, dlpack::VersionedManaged>) {
    owner->managed.major_version = 1;
  }
  PyObject* capsule = PyCapsule_New(&owner->managed, Managed::kCapsule, &free_capsule<Managed>);
  if (capsule == nullptr) throw py::error_already_set();
  owner.release();  // NOLINT(bugprone-unused-return-value): the capsule has it
  return py::reinterpret_steal<py::object>(capsule);
}

py::object DeviceArray::dlpack(const py::object& stream, const py::object& max_version,
                               const py::object& dl_device, const py::object& copy) const {
  if (!dl_device.is_none() && !dl_device.equal(dlpack_device())) {
    refuse_export("the array is on " + text_of(device()) + ", and stays there");
  }
  if (!copy.is_none() && copy.cast<bool>()) refuse_export("the array gives out itself, no copy");
  let_wait(stream, device());
  const bool versioned =
      !max_version.is_none() && max_version.cast<std::pair<int, int>>().first >= 1;
  return versioned ? capsule<dlpack::VersionedManaged>() : capsule<dlpack::Managed>();
}

void bind_device_array(py::module_& module) {
  const auto none = [](const char* name) { return py::arg(name) = py::none(); };
  py::class_<DeviceArray>(
      module, "DeviceArray",
      "Memory of a GPU that tutti owns, or bfloat16 of the CPU, as an array in C order: "
      "torch.from_dlpack(array), cupy.from_dlpack(array) and cupy.asarray(array) are views of it. "
      "It lives as long as any of them, and may outlive the communicator.")
      .def_property_readonly(
          "shape", [](const DeviceArray& self) { return py::tuple(py::cast(self.shape())); },
          "The lengths of the dimensions.")
      .def_property_readonly(
          "dtype", [](const DeviceArray& self) { return names_of(self.dtype()).name; },
          "The name of the element type, such as 'float32'.")
      .def_property_readonly(
          "device", [](const DeviceArray& self) { return text_of(self.device()); },
          "Such as 'cuda:0', or 'cpu'.")
      .def_property_readonly("__cuda_array_interface__", &DeviceArray::cuda_array_interface)
      .def("__dlpack_device__", &DeviceArray::dlpack_device)
      .def("__dlpack__", &DeviceArray::dlpack, py::kw_only(), none("stream"), none("max_version"),
           none("dl_device"), none("copy"))
      .def("__repr__", [](const DeviceArray& self) {
        return "<tutti.DeviceArray of shape " +
               py::repr(py::tuple(py::cast(self.shape()))).cast<std::string>() + ", " +
               names_of(self.dtype()).name + ", on " + text_of(self.device()) + ">";
      });
}

}  // namespace tutti::python
