// DistOpt as Python holds it.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"
#include "communicator.hpp"
#include "lifetime.hpp"
#include "tutti/dist_opt.hpp"

namespace tutti::python {

/** The base of tutti.opt.DistOpt: SINGA's methods, where a backward pass is a callable. */
class PyDistOpt final : public Closable {
 public:
  PyDistOpt(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<PyCommunicator> communicator,
            const DistOptions& options)
      : communicator_(std::move(communicator)),
        shared_(communicator_->shared()),
        dist_opt_(own<DistOpt>(std::move(optimizer), shared_, options)) {}
  ~PyDistOpt() override;

  const std::shared_ptr<PyCommunicator>& communicator() const { return communicator_; }
  DistOpt& get() const { return *dist_opt_; }
  std::weak_ptr<DistOpt> weak() const { return dist_opt_; }

  /** Parameter::row_elements, and Parameter::layout if that is not the array's shape. */
  using Trait = std::pair<std::int64_t, std::string>;
  /** The parameters by name, and arrays in which the model may write its gradients. traits: of the
   * first of them, or empty. */
  py::list register_parameters(const py::iterable& parameters, const std::vector<Trait>& traits);

  /** A step: `method` with the pass that calls `backward(emit)`. */
  using Step = std::function<void(DistOpt&, const Backward&)>;
  void step(const py::function& backward, const Step& method);

  /** Starts a sum by `method`; the tensor lives until wait(). */
  using Sum = std::function<void(DistOpt&, View)>;
  void start(py::handle tensor, const Sum& method);
  /** Fills the fused buffer with `tensors`, or starts the sum of what it was filled with. */
  using FusedSum = std::function<void(DistOpt&, std::span<const View>, bool send)>;
  void start_fused(const py::iterable& tensors, bool send, const FusedSum& method);
  void sparsification(const py::iterable& tensors, py::handle accumulation, double spars,
                      bool top_k);
  void wait();
  void update(py::handle parameter, py::handle gradient);

  py::dict state() const;
  void load_state(py::handle state);

  void close(const std::optional<std::string>& reason) override;

 private:
  /** Throws InvalidArgument unless both have the same shape, or, with `by_rows`, the same but for
   * the first length. */
  void check_shapes(const Array& parameter, const Array& gradient, bool by_rows = false) const;
  /** A backward pass that runs. */
  struct Pass {
    const Emit* emit = nullptr;      // null once it has ended
    std::exception_ptr interrupted;  // the Interrupted that ended a wait of emit
  };
  /** What the pass calls: emit(parameter, gradient). */
  void emit_in(Pass& pass, py::handle parameter, py::handle gradient);
  void emit(const Emit& emit, py::handle parameter, py::handle gradient);
  /** A gradient of rows: the pair (indices, rows). */
  void emit_rows(const Emit& emit, py::handle parameter, py::handle gradient);
  /** A pass has ended: what it has launched on a GPU comes before the update. */
  void end_pass();

  std::shared_ptr<PyCommunicator> communicator_;
  std::shared_ptr<Communicator> shared_;  // that of dist_opt_, also when communicator_ is closed
  std::vector<Array> parameters_;         // those that were registered: their memory must stay
  std::vector<std::string> names_;        // of those that register_parameters() got
  bool registered_ = false;
  std::vector<Array> gradients_;       // of the present step, on a GPU, which may still read them
  py::object last_parameter_;          // of the present pass, on a GPU
  std::vector<Array> filled_;          // in the fused buffer
  std::vector<Array> pending_;         // of sums under way
  std::shared_ptr<DistOpt> dist_opt_;  // ends before what it works on
};

void bind_dist_opt(py::module_& module);

}  // namespace tutti::python
