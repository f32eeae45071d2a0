// Python arrays as views, without a copy.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/device.hpp"
#include "tutti/dtype.hpp"

namespace tutti::python {

namespace py = pybind11;

class Interface;

/**
 * A Python array while C++ works on it: a view of its memory, and what keeps that memory where it
 * is. Made, moved and destroyed with the GIL held.
 *
 * Takes whatever has the buffer protocol, PyTorch's tensors in CPU memory, or else DLPack on a GPU,
 * __cuda_array_interface__,
 * __array_interface__ or DLPack (in this order), in C order. On a GPU, what the array's owner has
 * launched so far on its stream comes before what the GPU's default stream is given from now on.
 * Throws TypeError if `object` is no array, of a dtype that tutti does not know, or speaks its
 * protocol in other types than that has; InvalidArgument if it is not contiguous, is read-only
 * where it is to be written, is on a device that tutti does not know or this process cannot use, or
 * tells what cannot be (a negative length, memory that is not there); the message begins with
 * `name`.
 */
class Array {
 public:
  enum class Access { read, write };

  Array(py::handle object, const std::string& name, Access access);

  const View& view() const { return view_; }
  /** The object's own shape. */
  const std::vector<std::int64_t>& shape() const { return shape_; }

 private:
  struct Release {
    void operator()(Py_buffer* buffer) const {
      PyBuffer_Release(buffer);
      delete buffer;
    }
  };

  bool take_buffer(py::handle object, const std::string& name, Access access);
  bool take_torch_tensor(py::handle object, const std::string& name);
  bool take_cuda_interface(py::handle object, const std::string& name, Access access);
  bool take_interface(py::handle object, const std::string& name, Access access);
  bool take_dlpack(py::handle object, const std::string& name, Access access, bool on_gpu);
  void take_entries(py::handle object, const Interface& interface, const std::string& name,
                    Access access);
  void set(std::uintptr_t address, DType dtype, Device device, std::vector<std::int64_t> shape,
           const std::string& name);

  View view_;
  std::vector<std::int64_t> shape_;
  std::unique_ptr<Py_buffer, Release> buffer_;
  py::object owner_;
};

/** A NumPy array of that shape and dtype over `buffer`, which lives as long as the array does. */
py::object to_numpy(Buffer&& buffer, const py::object& shape, const py::object& dtype);

void bind_array(py::module_& module);

}  // namespace tutti::python
