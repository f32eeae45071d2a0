// Exceptions of C++ become those of tutti.errors, one to one.
#include "errors.hpp"

#include <exception>
#include <string_view>

#include "tutti/error.hpp"

namespace tutti::python {
namespace {

template <class... Arguments>
void raise(const char* name, const Arguments&... arguments) {
  const py::object type = py::module_::import("tutti.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(arguments...).ptr());
}

/** Texts of other ranks may be cut in the middle of a character. */
void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const PeerLost& error) {
    raise("PeerLost", py::tuple(py::cast(error.ranks())), str_of(error.reason()));
  } catch (const MismatchError& error) {
    raise("MismatchError", str_of(error.what()));
  } catch (const CommunicationError& error) {
    raise("CommunicationError", str_of(error.what()));
  } catch (const BackendUnavailable& error) {
    raise("BackendUnavailable", str_of(error.what()));
  } catch (const SystemError& error) {
    raise("SystemError", error.error_number(), str_of(error.what()));
  } catch (const DeadlineExceeded& error) {
    raise("DeadlineExceeded", str_of(error.what()));
  } catch (const InvalidArgument& error) {
    raise("InvalidArgument", str_of(error.what()));
  } catch (const Error& error) {
    raise("Error", str_of(error.what()));
  }
}

}  // namespace

py::object str_of(std::string_view text) {
  auto str = py::reinterpret_steal<py::object>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
  if (!str) throw py::error_already_set();
  return str;
}

std::string text_of_str(py::handle str) {
  const auto bytes = py::reinterpret_steal<py::bytes>(
      PyUnicode_AsEncodedString(str.ptr(), "utf-8", "backslashreplace"));
  if (!bytes) throw py::error_already_set();
  return bytes;
}

std::string text_of(py::handle exception) {
  std::string text = text_of_str(py::type::handle_of(exception).attr("__name__"));
  try {
    const std::string message = text_of_str(py::str(exception));
    if (!message.empty()) text += ": " + message;
  } catch (const py::error_already_set&) {  // it cannot say more
  }
  return text;
}

std::optional<std::string> reason_of(const py::object& exception) {
  if (exception.is_none()) return std::nullopt;
  if (PyErr_GivenExceptionMatches(exception.ptr(), PyExc_SystemExit) == 0)
    return text_of(exception);
  const py::object code = exception.attr("code");
  if (code.is_none() || code.equal(py::int_(0))) return std::nullopt;
  const py::object handled = exception.attr("__context__");
  return text_of(handled.is_none() ? exception : handled);
}

void bind_errors() { py::register_exception_translator(translate); }

}  // namespace tutti::python
