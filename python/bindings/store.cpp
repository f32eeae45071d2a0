// tutti.Store: keys and values that the ranks of a communicator share.
#include "tutti/store.hpp"

#include <chrono>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "communicator.hpp"
#include "given.hpp"
#include "lifetime.hpp"
#include "tutti/error.hpp"

namespace tutti::python {
namespace {

/** The memory of a bytes-like object. */
class BytesLike {
 public:
  explicit BytesLike(const py::object& value) {
    if (PyObject_GetBuffer(value.ptr(), &buffer_, PyBUF_SIMPLE) == 0) return;
    for (PyObject* const kind : {PyExc_TypeError, PyExc_BufferError, PyExc_ValueError}) {
      if (PyErr_ExceptionMatches(kind) == 0) continue;
      PyErr_Clear();
      given::refuse("value", value, "bytes-like, and contiguous");
    }
    throw py::error_already_set();
  }
  BytesLike(const BytesLike&) = delete;
  BytesLike& operator=(const BytesLike&) = delete;
  ~BytesLike() { PyBuffer_Release(&buffer_); }

  std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(buffer_.buf), static_cast<std::size_t>(buffer_.len)};
  }

 private:
  Py_buffer buffer_{};
};

using Key = Given<std::string>;
using Timeout = std::optional<std::chrono::milliseconds>;

Timeout timeout_of(const py::object& timeout) {
  if (timeout.is_none()) return std::nullopt;
  const auto seconds = given::number<double>("timeout", timeout);
  constexpr double kMost = 1e9;
  if (!(seconds >= 0 && seconds <= kMost)) {
    throw InvalidArgument("timeout is " + text_of_str(py::repr(timeout)) +
                          " seconds, but must be from 0 to 1e9");
  }
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1e3)));
}

/** Closed, it refuses every call. */
class PyStore final : public Closable {
  template <class Action>
  auto call(const Action& action) const {
    const std::shared_ptr<Store> store = store_;
    if (!store) throw CommunicationError("the store is closed");
    return blocking([&] { return action(*store); }, [] {});
  }

 public:
  explicit PyStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}

  void set(const Key& given, const py::object& value) const {
    const std::string key = text(given);
    const BytesLike memory(value);
    call([&](Store& store) { store.set(key, memory.bytes()); });
  }
  py::bytes get(const Key& given, const py::object& timeout) const {
    const std::string key = text(given);
    const Timeout limit = timeout_of(timeout);
    return to_bytes(call([&](Store& store) { return store.get(key, limit); }));
  }
  py::bytes pop(const Key& given, const py::object& timeout) const {
    const std::string key = text(given);
    const Timeout limit = timeout_of(timeout);
    return to_bytes(call([&](Store& store) { return store.pop(key, limit); }));
  }
  std::int64_t add(const Key& given, const Given<std::int64_t>& delta) const {
    const std::string key = text(given);
    const std::int64_t number = delta.as("delta");
    return call([&](Store& store) { return store.add(key, number); });
  }
  void close(const std::optional<std::string>& /*reason*/) override { store_.reset(); }

 private:
  static std::string text(const Key& key) { return key.as("key"); }
  static py::bytes to_bytes(const std::vector<std::byte>& value) {
    return {reinterpret_cast<const char*>(value.data()), value.size()};
  }

  std::shared_ptr<Store> store_;  // null once closed
};

std::shared_ptr<PyStore> make_store(const Given<std::shared_ptr<PyCommunicator>>& given) {
  const auto communicator = given.as("communicator", "of Communicator");
  auto store = communicator->call([](Communicator& ranks) { return own<Store>(ranks); });
  auto self = std::make_shared<PyStore>(std::move(store));
  close_at_exit(self);
  return self;
}

}  // namespace

void bind_store(py::module_& module) {
  using Shared = std::shared_ptr<PyStore>;
  py::class_<PyStore, Shared>(
      module, "Store",
      "Keys, up to 64 KiB, and values, any bytes, that all ranks of a communicator read and write, "
      "each when it "
      "likes. Making one is collective. A value is there as a whole or not at all. The rank has "
      "left the communicator when both are closed or gone.\n\n"
      "PeerLost names a rank that has died, if what is asked for is not there: it might have been "
      "to set it. Ctrl-C ends a wait, after which the store is of use as before.")
      .def(py::init(&make_store), py::arg("communicator"))
      .def("set", &PyStore::set, py::arg("key"), py::arg("value"),
           "The key has this value from now on: the bytes of any bytes-like object. SystemError if "
           "there is no memory for it.")
      .def("get", &PyStore::get, py::arg("key"), py::arg("timeout") = py::none(),
           "The value of the key. Waits for one for `timeout` seconds, which may be 0, or else as "
           "long as the communicator's waits may last; then DeadlineExceeded names the key.")
      .def("pop", &PyStore::pop, py::arg("key"), py::arg("timeout") = py::none(),
           "As get(), and removes the key: of several ranks that ask, one gets the value. Nobody "
           "does if that rank is interrupted as the value is on its way from another host.")
      .def("add", &PyStore::add, py::arg("key"), py::arg("delta"),
           "Adds to the number that is the key's value, in decimal digits; 0 if it has none. The "
           "sum.")
      .def(
          "close", [](const Shared& self) { self->close(std::nullopt); },
          "Lets go of the store, without waiting for others. Also done when the object goes, and "
          "at "
          "the interpreter's exit.");
}

}  // namespace tutti::python
