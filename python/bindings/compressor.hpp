// Compressors that are written in Python.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "communicator.hpp"
#include "tutti/compressor.hpp"
#include "tutti/dist_opt.hpp"

namespace tutti::python {

/** Whose memory the gradients of buckets are; known once it is made. */
using OwnerOfGradients = std::shared_ptr<std::weak_ptr<DistOpt>>;

/** What makes a compressor of the object that `make(site)` gives in Python. */
MakeCompressor compressor_from(py::object make, std::shared_ptr<PyCommunicator> communicator,
                               OwnerOfGradients owner);

void bind_compressor(py::module_& module);

}  // namespace tutti::python
