// tutti.Timeline: a file that shows what the ranks do.
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "bindings.hpp"
#include "communicator.hpp"
#include "given.hpp"
#include "lifetime.hpp"
#include "tutti/timeline.hpp"

namespace tutti::python {
namespace {

/** tutti.Timeline. Once closed it does nothing more. */
class PyTimeline final : public Closable {
 public:
  explicit PyTimeline(std::shared_ptr<Timeline> timeline) : timeline_(std::move(timeline)) {}

  void close(const std::optional<std::string>& /*reason*/) override { timeline_.reset(); }

 private:
  std::shared_ptr<Timeline> timeline_;
};

std::shared_ptr<PyTimeline> make_timeline(
    const Given<std::filesystem::path>& path_of,
    const Given<std::optional<std::shared_ptr<PyCommunicator>>>& of) {
  const auto path = path_of.as("path");
  const auto communicator = of.as("communicator", "of Communicator, or None");
  std::shared_ptr<Timeline> timeline;
  if (communicator) {
    timeline = (*communicator)->call([&](Communicator& ranks) {
      return own<Timeline>(Timeline(path, ranks));
    });
  } else {
    timeline = own<Timeline>(path);
  }
  auto self = std::make_shared<PyTimeline>(std::move(timeline));
  close_at_exit(self);
  return self;
}

}  // namespace

void bind_timeline(py::module_& module) {
  using Shared = std::shared_ptr<PyTimeline>;
  py::class_<PyTimeline, Shared>(
      module, "Timeline",
      "Writes what the ranks do into a file that ui.perfetto.dev and chrome://tracing open: each "
      "call, with how much of it was waiting for others, and the parts of DistOpt's steps.\n\n"
      "Timeline(path, communicator) is of that communicator and of what is split off it from now "
      "on; collective and blocking. Timeline(path) is of all communicators that this process makes "
      "until close(), as TUTTI_TIMELINE=path is of all.")
      .def(py::init(&make_timeline), py::arg("path"), py::arg("communicator") = py::none())
      .def(
          "close", [](const Shared& self) { self->close(std::nullopt); },
          "Writes what there is of this rank, and ends its part. Waits for nobody. Also done when "
          "the object goes, and at the interpreter's exit.")
      .def("__enter__", [](const Shared& self) { return self; })
      .def("__exit__", [](const Shared& self, const py::object&, const py::object&,
                          const py::object&) { self->close(std::nullopt); });
}

}  // namespace tutti::python
