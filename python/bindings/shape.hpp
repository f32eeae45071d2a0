// Shapes and strides, checked.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::python {

namespace py = pybind11;

using Shape = std::vector<std::int64_t>;

/** The most dimensions that an array may have, as in NumPy and PyTorch. */
inline constexpr std::int64_t kMostDimensions = 64;

/** "(2, 3)", as Python writes it. */
std::string text_of(const Shape& shape);

/** Throws InvalidArgument beginning with `name` unless there may be so many dimensions. */
void check_dimensions(std::int64_t dimensions, const std::string& name);

/** The numbers of a tuple or list. Throws, beginning with `what`, TypeError if it is none of whole
 * numbers, InvalidArgument if there are too many, or they are too large. */
Shape numbers_of(py::handle sequence, const std::string& what);

/** How many elements of `size` bytes there are. Throws InvalidArgument if a length is
 * negative, or all have more bytes than can be; `intro`, as "array has shape ", comes before the
 * shape. */
std::int64_t count_of(const Shape& shape, std::int64_t size, const std::string& intro);

/** Whether strides, in units of `step`, are those of C order. Of a shape that count_of() took, and
 * as many. */
bool is_contiguous(const Shape& shape, const Shape& strides, std::int64_t step);

/** Throws InvalidArgument unless this process has memory at all of these addresses. */
void check_mapped(std::uintptr_t address, std::int64_t bytes, const std::string& name);

}  // namespace tutti::python
