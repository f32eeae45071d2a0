// tutti._core.BucketAverage: what tutti.torch averages gradients with.
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"
#include "bindings.hpp"
#include "communicator.hpp"
#include "lifetime.hpp"
#include "state.hpp"
#include "tutti/bucket_average.hpp"

namespace tutti::python {
namespace {

class PyBucketAverage {
 public:
  PyBucketAverage(std::shared_ptr<PyCommunicator> communicator,
                  const std::vector<std::int64_t>& counts, py::handle like,
                  const DistOptions& options)
      : communicator_(std::move(communicator)),
        average_(own<BucketAverage>(communicator_->shared(), counts,
                                    Array(like, "like", Array::Access::read).view().device,
                                    options)) {}

  void average(py::handle gradients, std::int64_t steps) {
    std::vector<Array> arrays;
    arrays.emplace_back(gradients, "gradients", Array::Access::write);
    const View view = arrays.front().view();
    communicator_->call(arrays, [&](Communicator&) { average_->average(view, steps); });
  }
  py::dict state() const { return state_to_python(average_->state()); }
  void load_state(py::handle state) { average_->load_state(state_from_python(state)); }

 private:
  std::shared_ptr<PyCommunicator> communicator_;
  std::shared_ptr<BucketAverage> average_;  // ends before what it communicates by
};

std::shared_ptr<PyBucketAverage> make_bucket_average(std::shared_ptr<PyCommunicator> communicator,
                                                     const std::vector<std::int64_t>& counts,
                                                     py::handle like, const std::string& mode,
                                                     double spars, bool corr, bool clipping,
                                                     float clip_value, float momentum_correction,
                                                     float clip_norm, std::int64_t warm_up_epochs,
                                                     std::int64_t epoch_steps) {
  const NamedMode& named = named_mode(mode);
  DistOptions options;
  options.mode = named.mode;
  options.half = named.half.value_or(options.half);
  options.spars = spars;
  options.corr = corr;
  options.clipping = clipping;
  options.clip_value = clip_value;
  options.sparse = {momentum_correction, clip_norm, warm_up_epochs, epoch_steps};
  return std::make_shared<PyBucketAverage>(std::move(communicator), counts, like, options);
}

}  // namespace

void bind_bucket_average(py::module_& module) {
  const DistOptions defaults;
  py::class_<PyBucketAverage, std::shared_ptr<PyBucketAverage>>(
      module, "BucketAverage",
      "Averages the gradients of some parameters, which travel together, over the ranks. `counts` "
      "are their elements, `like` is an array of the device on which they lie; the mode and its "
      "options are those of tutti.opt.DistOpt.")
      .def(py::init(&make_bucket_average), py::arg("communicator"), py::arg("counts"),
           py::arg("like"), py::arg("mode"), py::kw_only(), py::arg("spars") = defaults.spars,
           py::arg("corr") = defaults.corr, py::arg("clipping") = defaults.clipping,
           py::arg("clip_Value") = defaults.clip_value, py::arg("momentum_correction") = 0.0F,
           py::arg("clip_norm") = 0.0F, py::arg("warm_up_epochs") = 0, py::arg("epoch_steps") = 0)
      .def("average", &PyBucketAverage::average, py::arg("gradients"), py::arg("steps"),
           "Replaces the gradients, one after the other in one array, by the average; `steps` were "
           "averaged before. Collective and blocking.")
      .def("state", &PyBucketAverage::state, "What is kept from step to step, of this rank.")
      .def("load_state", &PyBucketAverage::load_state, py::arg("state"), "Goes on from a state().");
}

}  // namespace tutti::python
