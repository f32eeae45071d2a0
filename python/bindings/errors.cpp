// Exceptions of C++ become those of tutti.errors, one to one.
#include "errors.hpp"

#include <exception>

#include "tutti/error.hpp"

namespace tutti::python {
namespace {

template <class... Arguments>
void raise(const char* name, const Arguments&... arguments) {
  const py::object type = py::module_::import("tutti.errors").attr(name);
  PyErr_SetObject(type.ptr(), type(arguments...).ptr());
}

void translate(std::exception_ptr thrown) {
  try {
    std::rethrow_exception(std::move(thrown));
  } catch (const PeerLost& error) {
    raise("PeerLost", py::tuple(py::cast(error.ranks())), error.reason());
  } catch (const MismatchError& error) {
    raise("MismatchError", error.what());
  } catch (const CommunicationError& error) {
    raise("CommunicationError", error.what());
  } catch (const BackendUnavailable& error) {
    raise("BackendUnavailable", error.what());
  } catch (const SystemError& error) {
    raise("SystemError", error.error_number(), error.what());
  } catch (const InvalidArgument& error) {
    raise("InvalidArgument", error.what());
  } catch (const Error& error) {
    raise("Error", error.what());
  }
}

}  // namespace

void bind_errors() { py::register_exception_translator(translate); }

}  // namespace tutti::python
