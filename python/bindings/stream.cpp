// tutti.Stream and Event.
#include "stream.hpp"

#include <utility>

#include "tutti/error.hpp"

namespace tutti::python {
namespace {

/** Whether what the operation works on may still be touched. */
bool may_be_touched(const Event& event) {
  if (!event.ready()) return true;
  try {
    event.wait();
  } catch (const CommunicationError&) {
    return true;
  } catch (const std::exception&) {  // refused before anything was sent
  }
  return false;
}

void wait(const PyEvent& event) {
  if (!event.communicator) return;
  blocking([&] { event.event.wait(); }, [&] { event.communicator->abort(Interrupted().what()); });
}

/** Once they are in no list: that may run Python, which may use the list. */
void let_go(std::deque<Operation> operations) {
  for (Operation& operation : operations) {
    if (!may_be_touched(operation.event)) continue;
    operation.communicator->keep(operation.arrays, std::move(operation.memory));
  }
}

}  // namespace

void Operations::drop_ended() {
  if (list_.empty() || !list_.front().event.ready()) return;
  std::deque<Operation> ended;
  while (!list_.empty() && list_.front().event.ready()) {
    ended.push_back(std::move(list_.front()));
    list_.pop_front();
  }
  let_go(std::move(ended));
}

void Operations::drop_all() { let_go(std::exchange(list_, {})); }

void Operations::abort(const std::string& reason) const {
  std::vector<std::shared_ptr<PyCommunicator>> communicators;
  for (const Operation& operation : list_) {
    if (!operation.event.ready()) communicators.push_back(operation.communicator);
  }
  for (const auto& communicator : communicators) communicator->abort(reason);
}

const std::shared_ptr<Stream>& PyStream::shared() const {
  if (!stream_) throw CommunicationError("the stream is closed");
  return stream_;
}

void PyStream::add(Operation operation) {
  operations_.drop_ended();
  operations_.add(std::move(operation));
}

void PyStream::synchronize() {
  const std::shared_ptr<Stream> stream = shared();  // another thread may close this one
  blocking([&] { stream->synchronize(); }, [this] { operations_.abort(Interrupted().what()); });
  operations_.drop_ended();
}

Operations PyStream::give_back() {
  stream_.reset();
  return std::exchange(operations_, {});
}

PyStream::~PyStream() {
  if (operations_.empty() || is_inherited()) return;
  if (stream_) {
    blocking_at_end([this] { stream_->synchronize(); },
                    [this] { operations_.abort(Interrupted().what()); });
    stream_.reset();
  }
  operations_.drop_all();
}

void PyStream::close(const std::optional<std::string>& reason) {
  operations_.abort(reason.value_or("its stream was closed"));
  stream_.reset();
  operations_.drop_all();
}

void bind_stream(py::module_& module) {
  py::class_<PyEvent>(module, "Event", "The completion of one operation on a stream.")
      .def(
          "ready", [](const PyEvent& event) { return event.event.ready(); },
          "Whether the operation has ended, well or not. Does not block.")
      .def("wait", &wait, "Blocks until the operation has ended, and raises what it raised.")
      .def_property_readonly(
          "received",
          [](const PyEvent& event) {
            return received_of(event.event.ready() ? event.received.get() : nullptr);
          },
          "Of a recv that has ended well: the Received that says who sent it, with which tag.");

  py::class_<PyStream, std::shared_ptr<PyStream>>(
      module, "Stream",
      "A thread that runs operations one after the other, beside the caller. It keeps their arrays "
      "alive. When it is dropped it first runs what was submitted.")
      .def(py::init([] {
        auto stream = std::make_shared<PyStream>();
        close_at_exit(stream);
        return stream;
      }))
      .def("synchronize", &PyStream::synchronize,
           "Blocks until everything submitted so far has ended. Exceptions stay in their events.");
}

}  // namespace tutti::python
