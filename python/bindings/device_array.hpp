// Memory that tutti owns and NumPy cannot have (a GPU's, or bfloat16 of the CPU), for whoever
// understands DLPack or __cuda_array_interface__.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/device.hpp"

namespace tutti::python {

namespace py = pybind11;

/** tutti.DeviceArray: a contiguous array. The memory lives as long as it and all that it gave out.
 */
class DeviceArray {
 public:
  DeviceArray(Buffer&& memory, std::vector<std::int64_t> shape, DType dtype);

  const std::vector<std::int64_t>& shape() const { return shape_; }
  DType dtype() const { return dtype_; }
  Device device() const { return memory_->device(); }

  /** The protocols' own words for it; see there. */
  py::dict cuda_array_interface() const;
  py::tuple dlpack_device() const;
  py::object dlpack(const py::object& stream, const py::object& max_version,
                    const py::object& dl_device, const py::object& copy) const;

 private:
  template <class Managed>
  py::object capsule() const;

  std::shared_ptr<Buffer> memory_;
  std::vector<std::int64_t> shape_;
  DType dtype_;
};

/** "cpu", or "cuda:1". */
std::string text_of(Device device);

void bind_device_array(py::module_& module);

}  // namespace tutti::python
