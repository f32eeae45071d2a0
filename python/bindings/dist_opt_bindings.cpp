// What tutti.opt.DistOpt stands on.
#include <pybind11/stl.h>

#include <string>
#include <utility>

#include "bindings.hpp"
#include "compressor.hpp"
#include "dist_opt.hpp"
#include "given.hpp"
#include "tutti/error.hpp"

namespace tutti::python {
namespace {

using PyClass = py::class_<PyDistOpt, std::shared_ptr<PyDistOpt>>;

/** What tutti.opt.DistOpt calls the mode in which gradients go through a compressor of Python's. */
constexpr const char* kCustom = "custom";

/** {name: (method, options)} of the modes. */
py::dict modes() {
  py::dict result;
  for (const NamedMode& mode : named_modes()) {
    py::list options;
    for (const std::string_view option : mode.options) options.append(py::str(option));
    result[py::str(mode.name)] = py::make_tuple(py::str(mode.method), py::tuple(options));
  }
  return result;
}

std::shared_ptr<PyDistOpt> make_dist_opt(
    std::shared_ptr<Optimizer> optimizer, std::shared_ptr<PyCommunicator> communicator,
    std::int64_t bucket_elements, bool missing_as_zero, const Given<std::string>& half_of,
    float momentum, float clip_norm, std::int64_t warm_up_epochs, std::int64_t epoch_steps,
    const Given<std::string>& mode_of, double spars, bool corr, bool clipping, float clip_value,
    const py::object& compressor) {
  const std::string half = half_of.as("half");
  const std::string dist_option = mode_of.as("dist_option");
  DistOptions options;
  options.bucket_elements = bucket_elements;
  options.missing_as_zero = missing_as_zero;
  if (half != "float16" && half != "bfloat16") {
    throw InvalidArgument("half is '" + half + "', but must be float16 or bfloat16");
  }
  options.half = half == "float16" ? DType::f16 : DType::bf16;
  options.sparse = {momentum, clip_norm, warm_up_epochs, epoch_steps};
  const auto owner = std::make_shared<std::weak_ptr<DistOpt>>();
  if (!compressor.is_none()) options.compressor = compressor_from(compressor, communicator, owner);
  if (dist_option == kCustom) {
    options.mode = DistMode::custom;
  } else {
    const NamedMode& named = named_mode(dist_option);
    options.mode = named.mode;
    options.half = named.half.value_or(options.half);
  }
  options.spars = spars;
  options.corr = corr;
  options.clipping = clipping;
  options.clip_value = clip_value;
  auto self = std::make_shared<PyDistOpt>(std::move(optimizer), std::move(communicator), options);
  *owner = self->weak();
  close_at_exit(self);
  return self;
}

py::dict statistics(const PyDistOpt& self) {
  const StepStatistics all = self.get().statistics();
  py::dict result;
  result["bytes_sent"] = all.bytes_sent;
  result["bytes_between"] = all.bytes_between;
  result["density"] = all.density;
  result["non_finite"] = all.non_finite;
  result["pack_seconds"] = all.pack_seconds;
  result["encode_seconds"] = all.encode_seconds;
  result["exchange_seconds"] = all.exchange_seconds;
  result["decode_seconds"] = all.decode_seconds;
  result["update_seconds"] = all.update_seconds;
  result["overlap_seconds"] = all.overlap_seconds;
  return result;
}

/** The steps; tutti.opt.DistOpt turns a loss into the function `backward`. */
void bind_steps(PyClass& dist_opt) {
  using Threshold = std::int64_t;
  dist_opt
      .def("_step",
           [](PyDistOpt& self, const py::function& backward, Threshold threshold) {
             self.step(backward, [&](DistOpt& opt, const Backward& run) { opt(run, threshold); });
           })
      .def("_update",
           [](PyDistOpt& self, const py::function& backward, Threshold threshold) {
             self.step(backward, [&](DistOpt& opt, const Backward& run) {
               opt.backward_and_update(run, threshold);
             });
           })
      .def("_update_half",
           [](PyDistOpt& self, const py::function& backward, Threshold threshold, bool clipping,
              float clip_value) {
             self.step(backward, [&](DistOpt& opt, const Backward& run) {
               opt.backward_and_update_half(run, threshold, clipping, clip_value);
             });
           })
      .def("_partial_update",
           [](PyDistOpt& self, const py::function& backward, Threshold threshold) {
             self.step(backward, [&](DistOpt& opt, const Backward& run) {
               opt.backward_and_partial_update(run, threshold);
             });
           })
      .def("_sparse_update",
           [](PyDistOpt& self, const py::function& backward, Threshold threshold, double spars,
              bool top_k, bool corr) {
             self.step(backward, [&](DistOpt& opt, const Backward& run) {
               opt.backward_and_sparse_update(run, threshold, spars, top_k, corr);
             });
           })
      .def("_custom_update",
           [](PyDistOpt& self, const py::function& backward, Threshold threshold) {
             self.step(backward, [&](DistOpt& opt, const Backward& run) {
               opt.backward_and_custom_update(run, threshold);
             });
           })
      .def(
          "synchronize",
          [](PyDistOpt& self) {
            self.communicator()->call([&](Communicator&) { self.get().synchronize(); });
          },
          "Averages all parameters over the ranks, after which they are the same bits: after "
          "partial updates, before an evaluation. Blocks.");
}

void bind_sums(PyClass& dist_opt) {
  using Views = std::span<const View>;
  dist_opt
      .def(
          "all_reduce",
          [](PyDistOpt& self, const AnyArray& tensor) {
            self.start(tensor, [](DistOpt& opt, View view) { opt.all_reduce(view); });
          },
          py::arg("tensor"),
          "Starts the sum of tensor, of any dtype, over the ranks, in place. wait() ends it, and "
          "until then the tensor is not to be touched. Not an average.")
      .def(
          "all_reduce_half",
          [](PyDistOpt& self, const AnyArray& tensor) {
            self.start(tensor, [](DistOpt& opt, View view) { opt.all_reduce_half(view); });
          },
          py::arg("tensor"), "As all_reduce, with a float32 tensor that travels in 16 bits.")
      .def(
          "fused_all_reduce",
          [](PyDistOpt& self, const py::iterable& tensors, bool send) {
            self.start_fused(tensors, send, [](DistOpt& opt, Views views, bool now) {
              opt.fused_all_reduce(views, now);
            });
          },
          py::arg("tensor"), py::arg("send") = true,
          "With send=False, copies a list of tensors, all of one dtype, into the fused buffer. "
          "With send=True, starts one sum of all that was filled, in the order of filling; wait() "
          "writes the sums back.")
      .def(
          "fused_all_reduce_half",
          [](PyDistOpt& self, const py::iterable& tensors, bool send) {
            self.start_fused(tensors, send, [](DistOpt& opt, Views views, bool now) {
              opt.fused_all_reduce_half(views, now);
            });
          },
          py::arg("tensor"), py::arg("send") = true,
          "As fused_all_reduce, with float32 tensors that travel in 16 bits.")
      .def(
          "sparsification",
          [](PyDistOpt& self, const AnyArray& tensor, const AnyArray& accumulation, double spars,
             bool top_k) {
            self.sparsification(py::make_tuple(tensor), accumulation, spars, top_k);
          },
          py::arg("tensor"), py::arg("accumulation"), py::arg("spars"), py::arg("topK"),
          "Starts the sum over the ranks of the elements of tensor (float32) that "
          "backward_and_sparse_update would send; wait() writes it to tensor, zero elsewhere. "
          "accumulation, float32 and as long, or None, is the residual.")
      .def("fused_sparsification", &PyDistOpt::sparsification, py::arg("tensor"),
           py::arg("accumulation"), py::arg("spars"), py::arg("topK"),
           "The same with a list of tensors taken as one.")
      .def("wait", &PyDistOpt::wait, "Blocks until the sums that were started have ended.");
}

void bind_class(py::module_& module) {
  PyClass dist_opt(module, "DistOpt", py::dynamic_attr());
  dist_opt
      .def(py::init(&make_dist_opt), py::arg("opt"), py::arg("communicator"),
           py::arg("bucket_elements"), py::arg("missing_as_zero"), py::arg("half"),
           py::arg("momentum"), py::arg("clip_norm"), py::arg("warm_up_epochs"),
           py::arg("epoch_steps"), py::arg("dist_option"), py::arg("spars"), py::arg("corr"),
           py::arg("clipping"), py::arg("clip_value"), py::arg("compressor"))
      .def_property_readonly("communicator", &PyDistOpt::communicator,
                             "The communicator, which the caller may use between the steps.")
      .def("register_parameters", &PyDistOpt::register_parameters, py::arg("parameters"),
           py::arg("traits") = std::vector<PyDistOpt::Trait>())
      .def(
          "update",
          [](PyDistOpt& self, const AnyArray& param, const AnyArray& grad) {
            self.update(param, grad);
          },
          py::arg("param"), py::arg("grad"),
          "Divides grad, a sum, by world_size, then updates a registered parameter. Local. Refused "
          "while a sum is under way: wait() first.")
      .def(
          "step", [](PyDistOpt& self) { self.get().step(); },
          "Counts a step of the optimiser; the backward_and_... methods do it themselves. Local.")
      .def("state", &PyDistOpt::state,
           "What this rank has to remember besides the parameters: {'arrays': {name: array}, "
           "'numbers': {name: float}}. Local.")
      .def(
          "load_state", [](PyDistOpt& self, const py::object& state) { self.load_state(state); },
          py::arg("state"),
          "Goes on from a state(), to the bit. Local, once the parameters are registered. Raises "
          "InvalidArgument, and changes nothing, if it is not of these parameters and this rank.")
      .def("statistics", &statistics,
           "Of the last step on this rank: bytes_sent (the packets handed to collectives), "
           "bytes_between (what it sent to other hosts for them), density, non_finite, and the "
           "seconds that its phases took.")
      .def_property_readonly(
          "bytes_per_step", [](const PyDistOpt& self) { return self.get().bytes_per_step(); },
          "Bytes that this rank handed to collectives in the last step.");
  bind_steps(dist_opt);
  bind_sums(dist_opt);
}

}  // namespace

void bind_dist_opt(py::module_& module) {
  bind_optimizers(module);
  bind_compressor(module);
  bind_class(module);
  module.attr("modes") = modes();
}

}  // namespace tutti::python
