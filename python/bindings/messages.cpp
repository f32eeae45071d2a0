// send, recv and exchange of tutti.Communicator, and what they take and give.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "calls.hpp"
#include "communicator.hpp"

namespace tutti::python {
namespace {

using Access = Array::Access;
using Self = std::shared_ptr<PyCommunicator>;

/** tutti.Send. */
struct PySend {
  py::object array;
  int destination;
  std::int32_t tag;
};

/** tutti.Recv. */
struct PyRecv {
  py::object array;
  int source;
  std::int32_t tag;
  std::shared_ptr<Received> received = std::make_shared<Received>();
};

EventObject send(const Self& self, const AnyArray& array, const Given<int>& to,
                 const Given<std::int32_t>& with_tag, const OnStream& stream) {
  const int destination = to.as("destination");
  const std::int32_t tag = with_tag.as("tag");
  std::vector<Array> arrays;
  arrays.emplace_back(array, "array", Access::read);
  const View view = arrays.front().view();
  return run(self, stream, std::move(arrays), [&](Communicator& communicator, const Stream& on) {
    return communicator.send(view, destination, tag, on);
  });
}

EventObject recv(const Self& self, const AnyArray& array, const Given<int>& from,
                 const Given<std::int32_t>& with_tag, const OnStream& stream) {
  const int source = from.as("source");
  const std::int32_t tag = with_tag.as("tag");
  std::vector<Array> arrays;
  arrays.emplace_back(array, "array", Access::write);
  const View view = arrays.front().view();
  const auto received = std::make_shared<Received>();
  const EventObject event = run(
      self, stream, std::move(arrays),
      [&](Communicator& communicator, const Stream& on) {
        return communicator.recv(view, source, tag, on, received.get());
      },
      received);
  PyEvent with_source = event.cast<PyEvent>();
  with_source.received = received;
  return py::cast(std::move(with_source));
}

EventObject exchange(const Self& self, const Given<py::iterable>& given, const OnStream& stream) {
  const auto items = given.as("messages", "an iterable of Send and Recv");
  std::vector<Array> arrays;
  std::vector<Message> messages;
  const auto received = std::make_shared<std::vector<std::shared_ptr<Received>>>();
  for (const py::handle item : items) {
    const std::string name = "messages[" + std::to_string(messages.size()) + "]";
    if (py::isinstance<PySend>(item)) {
      const auto& one = item.cast<const PySend&>();
      arrays.emplace_back(one.array, name + ".array", Access::read);
      messages.push_back(Message::send(arrays.back().view(), one.destination, one.tag));
    } else if (py::isinstance<PyRecv>(item)) {
      const auto& one = item.cast<const PyRecv&>();
      arrays.emplace_back(one.array, name + ".array", Access::write);
      *one.received = {};
      received->push_back(one.received);
      messages.push_back(
          Message::recv(arrays.back().view(), one.source, one.tag, one.received.get()));
    } else {
      throw py::type_error(name + " is a " + std::string(Py_TYPE(item.ptr())->tp_name) +
                           ", but must be a tutti.Send or a tutti.Recv");
    }
  }
  return run(
      self, stream, std::move(arrays),
      [&](Communicator& communicator, const Stream& on) {
        return communicator.exchange(messages, on);
      },
      received);
}

}  // namespace

py::object received_of(const Received* received) {
  if (received == nullptr || received->source == kAnySource) return py::none();
  return py::cast(*received);
}

void bind_messages(py::module_& module, py::class_<PyCommunicator, Self>& communicator) {
  module.attr("ANY_SOURCE") = kAnySource;
  module.attr("ANY_TAG") = kAnyTag;
  py::class_<Received>(module, "Received", "Of a message that has been received.")
      .def_readonly("source", &Received::source, "The rank that sent it.")
      .def_readonly("tag", &Received::tag, "Its tag.")
      .def("__repr__", [](const Received& one) {
        return "Received(source=" + std::to_string(one.source) +
               ", tag=" + std::to_string(one.tag) + ")";
      });
  py::class_<PySend>(module, "Send", "A message to send, for Communicator.exchange().")
      .def(py::init([](py::object array, const Given<int>& to, const Given<std::int32_t>& tag) {
             return PySend{std::move(array), to.as("destination"), tag.as("tag")};
           }),
           py::arg("array"), py::arg("destination"), py::arg("tag") = 0)
      .def_readonly("array", &PySend::array, "What is sent.")
      .def_readonly("destination", &PySend::destination, "The rank that it goes to.")
      .def_readonly("tag", &PySend::tag, "Its tag.");
  py::class_<PyRecv>(module, "Recv", "A message to receive, for Communicator.exchange().")
      .def(py::init([](py::object array, const Given<int>& from, const Given<std::int32_t>& tag) {
             return PyRecv{std::move(array), from.as("source"), tag.as("tag")};
           }),
           py::arg("array"), py::arg("source"), py::arg("tag") = 0)
      .def_readonly("array", &PyRecv::array, "Where to receive.")
      .def_readonly("source", &PyRecv::source, "The rank that it comes from, or ANY_SOURCE.")
      .def_readonly("tag", &PyRecv::tag, "The tag that it has, or ANY_TAG.")
      .def_property_readonly(
          "received", [](const PyRecv& one) { return received_of(one.received.get()); },
          "Once the exchange has ended: the Received that says who sent it, with which tag.");

  const auto tag = py::arg("tag") = 0;
  const auto stream = py::arg("stream") = py::none();
  communicator
      .def("send", &send, py::arg("array"), py::arg("destination"), tag, stream,
           "Sends to one rank; ends when the receiver has taken the data. To itself a rank sends "
           "while a recv of its own runs on a stream or another thread, or by exchange(). On GPUs "
           "the tag is 0.")
      .def("recv", &recv, py::arg("array"), py::arg("source"), tag, stream,
           "array = what rank `source` sends with that tag; count and dtype are the same on both "
           "sides. From ANY_SOURCE, not on GPUs, it takes the message of whichever rank sends "
           "first; with ANY_TAG, of any tag: the event's `received` says which.")
      .def("exchange", &exchange, py::arg("messages"), stream,
           "Does all of `messages`, each a Send or a Recv, at once; ends when all have. So ranks "
           "may send to each other, and to themselves, in one call. Messages of one rank with the "
           "same tag keep their order. What is received overlaps with nothing else.");
}

}  // namespace tutti::python
