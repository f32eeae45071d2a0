// How a call on a tutti.Communicator is run: here and now, or on a stream.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "given.hpp"
#include "stream.hpp"

namespace tutti::python {

/** A tutti.Event, and called so in help texts. */
class EventObject : public py::object {
 public:
  EventObject(py::object event) : py::object(std::move(event)) {}
};

/** Of a call, if it has one. */
using OnStream = Given<std::optional<PyStream*>>;

/** Runs a call on `stream`, or here and now without one. What it writes beside the arrays is in
 * `memory`. */
template <class Action>
EventObject run(const std::shared_ptr<PyCommunicator>& self, const OnStream& on,
                std::vector<Array> arrays, const Action& action,
                std::shared_ptr<const void> memory = {}) {
  const std::optional<PyStream*> stream = on.as("stream", "of Stream, or None");
  if (!stream) {
    self->call(arrays, [&](Communicator& communicator) { action(communicator, Stream()); });
    return self->ended();
  }
  const Event event = self->call(arrays, [&](Communicator& communicator) {
    return action(communicator, (*stream)->stream());
  });
  self->add(event);
  (*stream)->add({event, std::move(arrays), self, std::move(memory)});
  return py::cast(PyEvent{event, self});
}

}  // namespace tutti::python

template <>
struct pybind11::detail::handle_type_name<tutti::python::EventObject> {
  static constexpr auto name = const_name<tutti::python::PyEvent>();
};
