// What PyTorch lets nobody do from Python, for tutti.torch: `python3 -m tutti.torch.build` compiles
// it against the PyTorch that is installed.

#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/core/SafePyObject.h>
#include <pybind11/functional.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

namespace py = pybind11;

template <class Bucket>
concept KnowsComplex = requires(Bucket bucket) {
  bucket.is_complex_bucket;
};

/** What PyTorch's Reducer makes of complex gradients: from some version on it has real parts and
 *  imaginary ones, as elements, in its buckets, and expects them so from whoever allocates. */
struct Buckets : c10d::Reducer {
  static constexpr bool kAreReal = KnowsComplex<Bucket>;
};

/** The default backend of a group, as far as DistributedDataParallel's Reducer asks it for its
 *  buckets' memory. It has no collectives: those are the group's own. */
class BucketMemory final : public c10d::Backend {
 public:
  /** allocate(count, dtype) returns a tensor on the CPU. */
  BucketMemory(int rank, int size, py::function allocate)
      : Backend(rank, size), allocate_(allocate.release().ptr(), getPyInterpreter()) {}

  const std::string getBackendName() const override { return "tutti"; }

  /** Devices that have no number are CPUs. */
  bool supportsTensorAlloc(c10::DeviceIndex device) override { return device < 0; }

  /** Blocking, and collective. Throws what allocate() raises. */
  at::Tensor allocateTensor(long count, at::TensorOptions options) override {
    at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
    if (Buckets::kAreReal && c10::isComplexType(type)) {
      type = c10::toRealValueType(type);
      count *= 2;
    }
    py::gil_scoped_acquire lock;
    const py::handle allocate(allocate_.ptr(getPyInterpreter()));
    return allocate(count, type).cast<at::Tensor>();
  }

 private:
  c10::SafePyObject allocate_;  // which it lets go with the interpreter's lock
};

/** Shows PyTorch's profiler an operation, from now until what this returns is called: on any
 * thread, since it brings along which profiler looks at this one. */
std::function<void()> show(const std::string& name, const std::vector<at::Tensor>& tensors) {
  auto record = std::make_shared<at::RecordFunction>(at::RecordScope::USER_SCOPE);
  if (record->isActive()) {
    record->_setAsync();
    const std::vector<c10::IValue> inputs(tensors.begin(), tensors.end());
    record->before(name, c10::ArrayRef<const c10::IValue>(inputs.data(), inputs.size()));
  }
  return at::wrapPropagateTLSState([record] { record->end(); });
}

}  // namespace

PYBIND11_MODULE(_c10d, module) {
  py::module_::import("torch.distributed");  // which tells pybind11 of Backend
  py::class_<BucketMemory, c10d::Backend, c10::intrusive_ptr<BucketMemory>>(module, "BucketMemory")
      .def(py::init([](int rank, int size, py::function allocate) {
        return c10::make_intrusive<BucketMemory>(rank, size, std::move(allocate));
      }));
  module.def("show", show);
}
