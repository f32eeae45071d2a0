// tutti.opt: SGD, Adam, AdamW and Adagrad.
#include <pybind11/stl.h>

#include <memory>
#include <utility>

#include "bindings.hpp"
#include "given.hpp"
#include "tutti/adagrad.hpp"
#include "tutti/adam.hpp"
#include "tutti/optimizer.hpp"

namespace tutti::python {

namespace py = pybind11;

namespace {

using Betas = std::pair<float, float>;

constexpr const char* kLr = "The learning rate; a new one takes effect with the next update.";
constexpr const char* kEps = "What is added to the divisor.";
constexpr const char* kDecay = "How much of the parameter is added to its gradient.";

/** Reads an option. */
template <class Rule, auto Member>
auto option() {
  return [](const Rule& rule) { return rule.options().*Member; };
}

/** Writes an option. */
template <class Rule, class Base>
auto setter(void (Base::*set)(float), const char* name) {
  return [set, name](Rule& rule, const Given<float>& value) { (rule.*set)(value.as(name)); };
}

Betas betas_given(const Given<Betas>& betas) { return betas.as("betas", "two numbers"); }

Betas betas_of(const Adam& adam) { return {adam.options().beta1, adam.options().beta2}; }
void set_betas(Adam& adam, const Given<Betas>& given) {
  const Betas betas = betas_given(given);
  adam.set_betas(betas.first, betas.second);
}

void bind_sgd(py::module_& module) {
  const SgdOptions defaults;
  py::class_<SGD, Optimizer, std::shared_ptr<SGD>>(
      module, "SGD",
      "Stochastic gradient descent with the formulas of torch.optim.SGD:\n\n"
      "    d = g + weight_decay * p\n"
      "    m = d at first, later momentum * m + (1 - dampening) * d\n"
      "    p = p - lr * (d + momentum * m if nesterov else m)")
      .def(py::init([](const Given<float>& lr, const Given<float>& momentum,
                       const Given<float>& dampening, const Given<float>& weight_decay,
                       const Given<bool>& nesterov) {
             return std::make_shared<SGD>(
                 SgdOptions{lr.as("lr"), momentum.as("momentum"), dampening.as("dampening"),
                            weight_decay.as("weight_decay"), nesterov.as("nesterov")});
           }),
           py::arg("lr") = defaults.lr, py::arg("momentum") = defaults.momentum,
           py::arg("dampening") = defaults.dampening,
           py::arg("weight_decay") = defaults.weight_decay, py::arg("nesterov") = defaults.nesterov)
      .def_property("lr", option<SGD, &SgdOptions::lr>(), setter<SGD>(&SGD::set_lr, "lr"), kLr)
      .def_property("momentum", option<SGD, &SgdOptions::momentum>(),
                    setter<SGD>(&SGD::set_momentum, "momentum"),
                    "How much of m is kept in an update; from and to 0 it cannot change.")
      .def_property_readonly("dampening", option<SGD, &SgdOptions::dampening>(),
                             "How much of d is left out of m, after the first update.")
      .def_property_readonly("weight_decay", option<SGD, &SgdOptions::weight_decay>(), kDecay)
      .def_property_readonly("nesterov", option<SGD, &SgdOptions::nesterov>(),
                             "Whether updates look ahead by momentum * m.");
}

void bind_adam(py::module_& module) {
  const AdamOptions defaults;
  py::class_<Adam, Optimizer, std::shared_ptr<Adam>>(
      module, "Adam",
      "Adam with the formulas of torch.optim.Adam, t the number of the step:\n\n"
      "    d = g + weight_decay * p\n"
      "    m = beta1 * m + (1 - beta1) * d\n"
      "    v = beta2 * v + (1 - beta2) * d * d\n"
      "    p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)")
      .def(py::init([](const Given<float>& lr, const Given<Betas>& betas, const Given<float>& eps,
                       const Given<float>& weight_decay) {
             const auto [beta1, beta2] = betas_given(betas);
             return std::make_shared<Adam>(AdamOptions{lr.as("lr"), beta1, beta2, eps.as("eps"),
                                                       weight_decay.as("weight_decay")});
           }),
           py::arg("lr") = defaults.lr, py::arg("betas") = Betas(defaults.beta1, defaults.beta2),
           py::arg("eps") = defaults.eps, py::arg("weight_decay") = defaults.weight_decay)
      .def_property_readonly("weight_decay", option<Adam, &AdamOptions::weight_decay>(), kDecay)
      .def_property("lr", option<Adam, &AdamOptions::lr>(), setter<Adam>(&Adam::set_lr, "lr"), kLr)
      .def_property("betas", betas_of, set_betas, "How much of m and of v is kept in an update.")
      .def_property_readonly("eps", option<Adam, &AdamOptions::eps>(), kEps);
}

void bind_adam_w(py::module_& module) {
  const AdamWOptions defaults;
  py::class_<AdamW, Adam, std::shared_ptr<AdamW>>(
      module, "AdamW",
      "Adam whose parameters decay by themselves, as torch.optim.AdamW: d = g, and p is first "
      "multiplied by 1 - lr * weight_decay.")
      .def(py::init([](const Given<float>& lr, const Given<Betas>& betas, const Given<float>& eps,
                       const Given<float>& weight_decay) {
             const auto [beta1, beta2] = betas_given(betas);
             return std::make_shared<AdamW>(AdamWOptions{lr.as("lr"), beta1, beta2, eps.as("eps"),
                                                         weight_decay.as("weight_decay")});
           }),
           py::arg("lr") = defaults.lr, py::arg("betas") = Betas(defaults.beta1, defaults.beta2),
           py::arg("eps") = defaults.eps, py::arg("weight_decay") = defaults.weight_decay)
      .def_property_readonly("weight_decay", option<AdamW, &AdamOptions::weight_decay>(),
                             "How much of the parameter an update takes off, times lr.");
}

void bind_adagrad(py::module_& module) {
  const AdagradOptions defaults;
  py::class_<Adagrad, Optimizer, std::shared_ptr<Adagrad>>(
      module, "Adagrad",
      "Adagrad with the formulas of torch.optim.Adagrad, t the number of the step:\n\n"
      "    d = g + weight_decay * p\n"
      "    s = s + d * d, which starts from initial_accumulator_value\n"
      "    p = p - lr / (1 + (t - 1) * lr_decay) * d / (sqrt(s) + eps)")
      .def(py::init([](const Given<float>& lr, const Given<float>& lr_decay,
                       const Given<float>& weight_decay,
                       const Given<float>& initial_accumulator_value, const Given<float>& eps) {
             return std::make_shared<Adagrad>(AdagradOptions{
                 lr.as("lr"), lr_decay.as("lr_decay"), weight_decay.as("weight_decay"),
                 initial_accumulator_value.as("initial_accumulator_value"), eps.as("eps")});
           }),
           py::arg("lr") = defaults.lr, py::arg("lr_decay") = defaults.lr_decay,
           py::arg("weight_decay") = defaults.weight_decay,
           py::arg("initial_accumulator_value") = defaults.initial_accumulator_value,
           py::arg("eps") = defaults.eps)
      .def_property("lr", option<Adagrad, &AdagradOptions::lr>(),
                    setter<Adagrad>(&Adagrad::set_lr, "lr"), kLr)
      .def_property_readonly("lr_decay", option<Adagrad, &AdagradOptions::lr_decay>(),
                             "How much slower each step makes the next ones.")
      .def_property_readonly("weight_decay", option<Adagrad, &AdagradOptions::weight_decay>(),
                             kDecay)
      .def_property_readonly("initial_accumulator_value",
                             option<Adagrad, &AdagradOptions::initial_accumulator_value>(),
                             "What s starts from.")
      .def_property_readonly("eps", option<Adagrad, &AdagradOptions::eps>(), kEps);
}

}  // namespace

void bind_optimizers(py::module_& module) {
  const py::class_<Optimizer, std::shared_ptr<Optimizer>> base(
      module, "Optimizer", "What DistOpt works with: an SGD, Adam, AdamW or Adagrad.");
  bind_sgd(module);
  bind_adam(module);
  bind_adam_w(module);
  bind_adagrad(module);
}

}  // namespace tutti::python
