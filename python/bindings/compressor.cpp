// Compressors that are written in Python: what C++ asks of one becomes calls of its methods.
#include "compressor.hpp"

#include <deque>
#include <utility>
#include <vector>

#include "array.hpp"
#include "array_owner.hpp"
#include "device_array.hpp"
#include "state.hpp"
#include "stream.hpp"

namespace tutti::python {
namespace {

/** tutti.opt.Site. */
struct PySite {
  std::shared_ptr<PyCommunicator> communicator;
  std::int64_t elements = 0;
};

/** tutti.opt.Bucket. */
struct PyBucket {
  std::int64_t begin = 0;
  std::int64_t elements = 0;
  py::object gradients;
};

/** An object of Python that may be copied and dropped without the GIL. */
std::shared_ptr<py::object> shared(py::object object) {
  return {new py::object(std::move(object)), [](py::object* held) {
            if (Py_IsInitialized() == 0) return;  // nobody is left to be told
            const py::gil_scoped_acquire gil;
            delete held;
          }};
}

/** With the GIL; what Python raises goes on as what C++ can tell the other ranks. */
template <class Call>
auto in_python(Call&& call) {
  const py::gil_scoped_acquire held;
  try {
    return call();
  } catch (const py::error_already_set& error) {
    throw PythonError(error);
  }
}

class PyCompressor final : public Compressor {
 public:
  PyCompressor(std::shared_ptr<py::object> self, OwnerOfGradients owner)
      : self_(std::move(self)), owner_(std::move(owner)) {}
  PyCompressor(const PyCompressor&) = delete;
  PyCompressor& operator=(const PyCompressor&) = delete;
  ~PyCompressor() override {
    if (Py_IsInitialized() == 0) return;
    try {
      const py::gil_scoped_acquire held;
      drop_under_way();
    } catch (...) {  // nobody is there to be told
    }
  }

  void begin() override {
    in_python([&] {
      drop_under_way();
      drop_decoded();
      call("begin");
    });
  }

  Traffic encode(const BucketView& bucket) override {
    return in_python([&] {
      const auto [elements, bytes] = pair_of(call("encode", bucket_of(bucket)), "encode()",
                                             "a pair of numbers: elements, bytes");
      return Traffic{integer_of(elements, "encode()"), integer_of(bytes, "encode()")};
    });
  }

  Event exchange(const BucketView& bucket, const Stream& stream) override {
    return in_python([&] {
      if (stream.is_inline()) {
        call("exchange", bucket_of(bucket), py::none());
        under_way_.emplace_back();
        return Event();
      }
      const auto lent = std::make_shared<PyStream>(stream);
      const Return returned(*lent, under_way_.emplace_back());
      const py::object event = call("exchange", bucket_of(bucket), lent);
      if (!py::isinstance<PyEvent>(event)) refuse_type("exchange()", event, "a tutti.Event");
      return event.cast<const PyEvent&>().event;
    });
  }

  void decode(const BucketView& bucket) override {
    in_python([&] {
      call("decode", bucket_of(bucket));
      decoded_.push_back(std::move(under_way_.front()));
      under_way_.pop_front();
      drop_decoded();
    });
  }

  OptimizerState state() const override {
    return in_python([&] { return state_from_python(call("state")); });
  }

  void load_state(const OptimizerState& state) override {
    in_python([&] { call("load_state", state_to_python(state)); });
  }

 private:
  /** Takes a stream that was lent back, with the arrays of what is under way on it. */
  struct Return {
    PyStream& stream;
    Operations& operations;
    Return(PyStream& lent, Operations& given_back) : stream(lent), operations(given_back) {}
    Return(const Return&) = delete;
    Return& operator=(const Return&) = delete;
    ~Return() { operations = stream.give_back(); }
  };

  /** Of a step that has failed. */
  void drop_under_way() {
    for (Operations& operations : std::exchange(under_way_, {})) operations.drop_all();
  }
  /** What has ended of them: on a GPU a bucket is decoded behind its exchange, not after it. */
  void drop_decoded() {
    for (Operations& operations : std::exchange(decoded_, {})) {
      operations.drop_ended();
      if (!operations.empty()) decoded_.push_back(std::move(operations));
    }
  }

  template <class... Arguments>
  py::object call(const char* method, Arguments&&... arguments) const {
    return self_->attr(method)(std::forward<Arguments>(arguments)...);
  }

  PyBucket bucket_of(const BucketView& bucket) const {
    const View& view = bucket.gradients;
    Buffer memory(view.data, view.bytes(), owner_->lock(), view.device);
    if (view.device.kind == DeviceKind::cuda) {
      return {bucket.begin, bucket.elements,
              py::cast(DeviceArray(std::move(memory), {view.count}, DType::f32))};
    }
    return {bucket.begin, bucket.elements,
            to_numpy(std::move(memory), py::make_tuple(view.count), py::str("float32"))};
  }

  std::shared_ptr<py::object> self_;
  OwnerOfGradients owner_;
  std::deque<Operations> under_way_;  // of each bucket that was exchanged
  std::deque<Operations> decoded_;    // which may go on on a GPU
};

}  // namespace

MakeCompressor compressor_from(py::object make, std::shared_ptr<PyCommunicator> communicator,
                               OwnerOfGradients owner) {
  return [make = shared(std::move(make)), communicator = std::move(communicator),
          owner = std::move(owner)](const CompressorSite& site) -> std::unique_ptr<Compressor> {
    return in_python([&] {
      py::object self = (*make)(PySite{communicator, site.elements});
      return std::make_unique<PyCompressor>(shared(std::move(self)), owner);
    });
  };
}

void bind_compressor(py::module_& module) {
  py::class_<PySite>(module, "Site", "Where a compressor works.")
      .def_readonly("communicator", &PySite::communicator, "Of the ranks that average gradients.")
      .def_readonly("elements", &PySite::elements, "Size of the memory of all gradients.");
  py::class_<PyBucket>(module, "Bucket", "Gradients that travel together.")
      .def_readonly("begin", &PyBucket::begin, "Where they start in the memory of all gradients.")
      .def_readonly("elements", &PyBucket::elements, "Of gradients, without what lies between.")
      .def_property(
          "gradients", [](const PyBucket& bucket) { return bucket.gradients; },
          [](const PyBucket& bucket, const py::object& values) {  // also after gradients += ...
            if (values.is(bucket.gradients)) return;
            bucket.gradients[py::slice(py::none(), py::none(), py::none())] = values;
          },
          "They, and zeros between them: float32. To assign is to copy.");
}

}  // namespace tutti::python
