// Reads PyTorch's tensors without a protocol between, which would cost more than a small sum.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <optional>

#include "shape.hpp"
#include "tutti/dtype.hpp"

namespace tutti::python {

namespace py = pybind11;

/** What a tensor of PyTorch says of its memory. */
struct TorchTensor {
  std::uintptr_t address;
  DType dtype;
  Shape shape;
};

/**
 * Of a torch.Tensor or torch.nn.Parameter in CPU memory, in C order, of a type that tutti knows;
 * nothing for everything else, subclasses too, which DLPack describes or refuses. Never throws what
 * the tensor raises, and never imports PyTorch.
 */
std::optional<TorchTensor> torch_tensor(py::handle object);

}  // namespace tutti::python
