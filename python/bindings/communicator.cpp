// tutti.Communicator: how it begins and ends. The collectives are in collectives.cpp.
#include "communicator.hpp"

#include <pthread.h>
#include <pybind11/stl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <string>
#include <string_view>
#include <thread>

#include "array_owner.hpp"
#include "device_array.hpp"
#include "dtypes.hpp"
#include "errors.hpp"
#include "given.hpp"
#include "shape.hpp"
#include "tutti/error.hpp"
#include "tutti/launch.hpp"
#include "tutti/mpi.hpp"

namespace tutti::python {

using Self = std::shared_ptr<PyCommunicator>;

bool on_main_thread() {
  // Two calls into the kernel, which cost about as much as a small sum: a thread makes them once.
  thread_local bool is_main = ::syscall(SYS_gettid) == ::getpid();
  [[maybe_unused]] static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { is_main = true; });
  return is_main;
}

void raise_soon(py::error_already_set error) {
  auto kept = std::make_unique<py::error_already_set>(std::move(error));
  const auto raise = [](void* pointer) {
    const std::unique_ptr<py::error_already_set> owner(
        static_cast<py::error_already_set*>(pointer));
    owner->restore();
    return -1;
  };
  if (Py_AddPendingCall(raise, kept.get()) == 0) {
    kept.release();  // NOLINT(bugprone-unused-return-value): the call owns it
  } else {
    kept->discard_as_unraisable("tutti");
  }
}

PyCommunicator::PyCommunicator(std::shared_ptr<Communicator> communicator)
    : communicator_(std::move(communicator)), ended_(py::cast(PyEvent{})) {}

std::shared_ptr<Communicator> PyCommunicator::shared() const {
  if (!communicator_) throw CommunicationError("the communicator is closed");
  return communicator_;
}

void PyCommunicator::keep(std::vector<Array>& arrays, std::shared_ptr<const void> memory) {
  for (Array& array : arrays) kept_.push_back(std::move(array));
  if (memory) kept_memory_.push_back(std::move(memory));
}

void PyCommunicator::add(const Event& event) {
  while (!events_.empty() && events_.front().ready()) events_.pop_front();
  events_.push_back(event);
}

bool PyCommunicator::is_busy() const {
  return busy_ > 0 || std::any_of(events_.begin(), events_.end(),
                                  [](const Event& event) { return !event.ready(); });
}

void PyCommunicator::abort(const std::string& reason) const {
  const auto communicator = communicator_;
  if (!communicator) return;
  const py::gil_scoped_release released;
  communicator->abort(reason);
}

void PyCommunicator::close(const std::optional<std::string>& reason) {
  const auto communicator = std::exchange(communicator_, nullptr);
  if (!communicator || !(reason || is_busy())) return;
  // Calls on other threads and streams hold it, too. They end soon after an abort.
  const py::gil_scoped_release released;
  communicator->abort(reason.value_or("its communicator was closed"));
  for (int i = 0; i < 1000 && busy_ > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

namespace {

CommOptions options_of(const py::object& timeout) {
  CommOptions options;
  if (timeout.is_none()) return options;
  const auto seconds = given::number<double>("timeout", timeout);
  constexpr double kMost = 1e9;
  if (!(seconds > 0 && seconds <= kMost)) {
    throw InvalidArgument("timeout is " + text_of_str(py::repr(timeout)) +
                          " seconds, but must be above 0 and at most 1e9");
  }
  options.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1e3)));
  return options;
}

template <class Make>
Self connect(Make&& make) {
  ask_logger();
  auto communicator = blocking([&] { return own<Communicator>(make()); }, [] {});
  auto self = std::make_shared<PyCommunicator>(std::move(communicator));
  close_at_exit(self);
  return self;
}

std::string mpi_library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  return {text.data(), static_cast<std::size_t>(length)};
}

/** The handle inside a communicator of mpi4py. */
MPI_Comm handle_of(const py::object& comm) {
  const py::module_ mpi = py::module_::import("mpi4py.MPI");
  if (!py::isinstance(comm, mpi.attr("Comm"))) {
    throw py::type_error("comm is a " + std::string(Py_TYPE(comm.ptr())->tp_name) +
                         ", but must be an mpi4py.MPI.Comm");
  }
  const auto theirs = mpi.attr("Get_library_version")().cast<std::string>();
  if (theirs != mpi_library() ||
      mpi.attr("_sizeof")(comm).cast<std::size_t>() != sizeof(MPI_Comm)) {
    throw InvalidArgument("comm: mpi4py uses another MPI library (" + theirs + ") than tutti (" +
                          mpi_library() + ")");
  }
  const auto address = mpi.attr("_addressof")(comm).cast<std::uintptr_t>();
  return *reinterpret_cast<const MPI_Comm*>(address);  // NOLINT(performance-no-int-to-ptr)
}

/** What `device` says: "cpu", "cuda", "cuda:1", or whatever str() makes one of these. */
Device device_named(const Communicator& communicator, const py::object& device) {
  const std::string text = text_of_str(py::str(device));
  if (text == "cpu") return {};
  if (text == "cuda") {
    const Device own = communicator.device();
    if (own.kind == DeviceKind::cuda) return own;
    throw BackendUnavailable(
        "device is 'cuda', but this rank has no GPU: there is none that it can use, or "
        "TUTTI_DEVICE is cpu");
  }
  Device named{DeviceKind::cuda, 0};
  const char* const end = text.data() + text.size();
  const std::string_view prefix = "cuda:";
  if (text.starts_with(prefix)) {
    const auto [stop, error] = std::from_chars(text.data() + prefix.size(), end, named.ordinal);
    if (error == std::errc{} && stop == end && named.ordinal >= 0) return named;
  }
  throw InvalidArgument("device is '" + text + "', but must be cpu, cuda, or cuda: and a number");
}

/** The shape that is a number, or several. */
Shape shape_named(const py::object& shape) {
  if (PyIndex_Check(shape.ptr()) != 0) return {integer_of(shape, "shape")};
  return numbers_of(shape, "shape");
}

py::object empty(const Self& self, const py::object& shape, const py::object& dtype,
                 const py::object& device) {
  const Device where = device_named(self->get(), device);
  const NamedDType type = dtype_named(dtype, "dtype");
  Shape extents = shape_named(shape);
  const std::int64_t size = size_of(type.dtype);
  const std::int64_t bytes = size * count_of(extents, size, "shape is ");
  Buffer buffer =
      self->call([&](Communicator& communicator) { return communicator.allocate(bytes, where); });
  if (where.kind == DeviceKind::cpu && !type.numpy.is_none()) {
    return to_numpy(std::move(buffer), py::tuple(py::cast(extents)), type.numpy);
  }
  return py::cast(DeviceArray(std::move(buffer), std::move(extents), type.dtype));
}

std::optional<Self> split(const Self& self, const Given<int>& of_color, const Given<int>& by_key) {
  const int color = of_color.as("color");
  const int key = by_key.as("key");
  auto part =
      self->call([&](Communicator& communicator) { return communicator.split(color, key); });
  if (!part) return std::nullopt;
  return connect([&] { return std::move(*part); });
}

Self group(const Self& self, const Given<std::vector<int>>& of_ranks) {
  const auto ranks = of_ranks.as("ranks", "a list of whole numbers");
  auto members = self->call([&](Communicator& communicator) { return communicator.group(ranks); });
  return connect([&] { return std::move(members); });
}

}  // namespace

void bind_communicator(py::module_& module) {
  py::class_<PyCommunicator, Self> communicator(
      module, "Communicator",
      "A group of ranks that call collectives together: all of them, in the same order, with "
      "matching arguments; otherwise every rank gets MismatchError before any output is "
      "written, or, in a broadcast between hosts, in its next call.\n\n"
      "Communicator() joins all ranks that a launcher has started: tutti run, mpiexec, torchrun, "
      "srun, or Paddle's; see launched_by(). Where it was mpiexec, initialises MPI if nobody has. "
      "Communicator(local_rank, world_size, id) joins processes of this host that hold the same "
      "NcclIdHolder; MPI is not touched. Both block until all ranks have come, at most `timeout` "
      "seconds (TUTTI_TIMEOUT, or else 300), which then limits every wait: PeerLost names who did "
      "not come.\n\n"
      "Arrays are whatever has the buffer protocol, __array_interface__, __cuda_array_interface__ "
      "or DLPack, in C order; float32, float64, float16, bfloat16, bool, or integers of 8 to 64 "
      "bits. They are "
      "used in place. In a call, all are in CPU memory on all ranks, or all on GPUs, those of a "
      "rank always on the same one; what their owners have launched comes before, and when the "
      "call "
      "has ended the GPU has, too. Without a stream a call blocks, without the GIL; with one it "
      "returns at once, and "
      "the arrays belong to it until its Event is ready. Ctrl-C ends a wait; then, and after "
      "PeerLost or MismatchError, the communicator refuses further use.");
  communicator
      .def(py::init([](const py::object& timeout) {
             const CommOptions options = options_of(timeout);
             return connect([&] { return Communicator(options); });
           }),
           py::kw_only(), py::arg("timeout") = py::none())
      .def(py::init([](const Given<int>& local_rank, const Given<int>& world_size,
                       const Given<UniqueId>& id, const py::object& timeout) {
             const CommOptions options = options_of(timeout);
             const int rank = local_rank.as("local_rank");
             const int ranks = world_size.as("world_size");
             const auto ticket = id.as("id", "of NcclIdHolder");
             return connect([&] { return Communicator(rank, ranks, ticket, options); });
           }),
           py::arg("local_rank"), py::arg("world_size"), py::arg("id"), py::kw_only(),
           py::arg("timeout") = py::none())
      .def_static(
          "from_mpi",
          [](const py::object& comm, const py::object& timeout) {
            const CommOptions options = options_of(timeout);
            MPI_Comm handle = handle_of(comm);
            return connect([&] { return tutti::from_mpi(handle, options); });
          },
          py::arg("comm"), py::kw_only(), py::arg("timeout") = py::none(),
          "A communicator over the ranks of an mpi4py communicator, which is duplicated and stays "
          "the caller's. Collective over them.")
      .def_static(
          "from_endpoints",
          [](const py::object& endpoints, const Given<int>& trainer_id, const py::object& timeout) {
            const CommOptions options = options_of(timeout);
            const std::string list = given::joined_texts("endpoints", endpoints);
            const int id = trainer_id.as("trainer_id");
            return connect([&] { return tutti::from_endpoints(list, id, options); });
          },
          py::arg("endpoints"), py::arg("trainer_id"), py::kw_only(),
          py::arg("timeout") = py::none(),
          "A communicator over the trainers that `endpoints` names: 'host:port' of trainer 0, of "
          "trainer 1, and so on, a sequence or a text with commas. Trainers of one host need no "
          "launcher; those of several are started by mpiexec. Nothing listens at the ports.")
      .def_property_readonly(
          "global_rank", [](const Self& self) { return self->get().global_rank(); },
          "The rank among all.")
      .def_property_readonly(
          "world_size", [](const Self& self) { return self->get().world_size(); },
          "How many ranks there are.")
      .def_property_readonly(
          "local_rank", [](const Self& self) { return self->get().local_rank(); },
          "The rank among those of this host.")
      .def_property_readonly(
          "local_size", [](const Self& self) { return self->get().local_size(); },
          "How many ranks this host has.")
      .def_property_readonly(
          "device", [](const Self& self) { return text_of(self->get().device()); },
          "Where this rank should compute: 'cuda:' and its local_rank modulo the number of GPUs, "
          "or "
          "'cpu' if there is none; TUTTI_DEVICE overrides it. torch.device() understands it.")
      .def(
          "describe", [](const Self& self) { return self->get().describe(); },
          "One line: what carries the bytes, and between whom.")
      .def(
          "empty", &empty, py::arg("shape"), py::arg("dtype") = "float32", py::kw_only(),
          py::arg("device") = "cpu",
          "An array of zeros in symmetric memory. Collective and blocking: all ranks ask for the "
          "same number of bytes. The array may outlive the communicator. dtype: a name such as "
          "'bfloat16', or a dtype of NumPy, ml_dtypes or PyTorch. On the CPU, where collectives on "
          "it are zero-copy inside a host, it is a NumPy array, but of torch.bfloat16 (and of "
          "'bfloat16' without ml_dtypes), which NumPy does not know, a DeviceArray. On a GPU "
          "('cuda': this rank's, 'cuda:1', a torch.device) it is a DeviceArray, in memory that is "
          "registered with NCCL.")
      .def("split", &split, py::arg("color"), py::arg("key") = 0,
           "A communicator among the ranks that pass the same color, ordered by key, then by rank; "
           "None for a negative color. Collective and blocking.")
      .def(
          "group", &group, py::arg("ranks"),
          "A communicator among these ranks alone, in this order: the first of them is its rank 0. "
          "Collective over them and blocking; the others take no part. MismatchError shows both "
          "lists if another member comes with another one; PeerLost names who does not come.")
      .def(
          "lateness",
          [](const Self& self) {
            return self->call([](Communicator& ranks) { return ranks.lateness(); });
          },
          "For each rank the seconds that the others have waited for it to come to collectives so "
          "far, on average; a wait counts for the rank that came last. Collective and blocking.")
      .def(
          "abort",
          [](const PyCommunicator& self, const Given<std::string>& reason) {
            self.abort(reason.as("reason"));
          },
          py::arg("reason"),
          "Gives up: the other ranks get PeerLost naming this one with the reason.")
      .def(
          "close", [](const Self& self) { self->close(std::nullopt); },
          "Leaves the communicator, without waiting for the others; what is under way on other "
          "threads and on streams is aborted. A DistOpt that works with it has to go as well. Also "
          "done when the object goes, and at the interpreter's exit.")
      .def("__enter__", [](const Self& self) { return self; })
      .def("__exit__", [](const Self& self, const py::object&, const py::object& value,
                          const py::object&) { self->close(reason_of(value)); });
  bind_collectives(communicator);
  bind_messages(module, communicator);
  module.def("mpi_library", &mpi_library, "Name and version of the MPI library.");
  module.def(
      "launched_by", &tutti::launched_by,
      "What has started this process as one of several ranks, as its environment says: 'tutti "
      "run', 'mpiexec', 'torchrun', \"Paddle's launcher\" or 'srun'; '' if nothing has.");
}

}  // namespace tutti::python
