// Shapes and strides, checked.
#include "shape.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "array_owner.hpp"
#include "tutti/error.hpp"

namespace tutti::python {

std::string text_of(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

void check_dimensions(std::int64_t dimensions, const std::string& name) {
  if (dimensions >= 0 && dimensions <= kMostDimensions) return;
  throw InvalidArgument(name + " has " + std::to_string(dimensions) +
                        " dimensions, but must have 0 to " + std::to_string(kMostDimensions));
}

Shape numbers_of(py::handle sequence, const std::string& what) {
  constexpr const char* kWanted = ", but must be a tuple of whole numbers";
  if (!py::isinstance<py::tuple>(sequence) && !py::isinstance<py::list>(sequence)) {
    throw py::type_error(what + " is a " + Py_TYPE(sequence.ptr())->tp_name + kWanted);
  }
  if (py::len(sequence) > kMostDimensions) {
    throw InvalidArgument(what + " has " + std::to_string(py::len(sequence)) +
                          " numbers, but there may be at most " + std::to_string(kMostDimensions));
  }
  Shape numbers;
  for (const py::handle item : sequence) numbers.push_back(integer_of(item, what));
  return numbers;
}

std::int64_t count_of(const Shape& shape, std::int64_t size, const std::string& intro) {
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t length) { return length < 0; })) {
    throw InvalidArgument(intro + text_of(shape) + ", but no length may be negative");
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  std::int64_t bytes = size;
  for (const std::int64_t length : shape) {
    if (__builtin_mul_overflow(bytes, length, &bytes)) {
      throw InvalidArgument(intro + text_of(shape) + ", which is too much");
    }
  }
  return bytes / size;
}

bool is_contiguous(const Shape& shape, const Shape& strides, std::int64_t step) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  for (std::size_t i = shape.size(); i-- > 0; step *= shape[i]) {
    if (shape[i] != 1 && strides[i] != step) return false;
  }
  return true;
}

void check_mapped(std::uintptr_t address, std::int64_t bytes, const std::string& name) {
  if (bytes == 0) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t first = address / page * page;
  // Asked for nothing but the way there, the kernel says whether pages are missing.
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the protocols pass addresses as numbers.
  if (::msync(reinterpret_cast<void*>(first), address - first + static_cast<std::size_t>(bytes),
              MS_ASYNC) == 0 ||
      errno != ENOMEM) {
    return;
  }
  std::ostringstream text;
  text << name << " has " << bytes << " bytes at address 0x" << std::hex << address
       << ", where this process has no memory";
  throw InvalidArgument(text.str());
}

}  // namespace tutti::python
