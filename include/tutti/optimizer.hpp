// Parameters, and optimisers that update ranges of a flat parameter space.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tutti/device.hpp"
#include "tutti/dtype.hpp"

namespace tutti {

class Arithmetic;
struct SgdPiece;

/** A model parameter: f32 elements that the model owns. Its identity is its address and size. */
struct Parameter {
  View value;
  std::string name;  ///< for messages only; may be empty
  /** Not 0: a table of rows of that many elements, of which a step touches few (Gradient). The same
   * on all ranks. */
  std::int64_t row_elements = 0;
  /** What its elements mean, such as "10x20": a shape, and the order in which its axes lie in
   * memory. The same text on all ranks; may be empty. */
  std::string layout = {};
};

/**
 * A stretch of the flat parameter space with its memory. The space is the parameters one after
 * the other in the order of their registration; `offset` counts elements of it.
 */
struct ParameterRange {
  std::int64_t offset = 0;
  std::int64_t count = 0;
  float* parameter = nullptr;
  const float* gradient = nullptr;
  float gradient_scale = 1.0F;  ///< multiplies the gradient first
};

/** What an optimiser has to remember: named arrays over the parameter space, and numbers. */
struct OptimizerState {
  std::map<std::string, std::vector<float>> arrays;
  std::map<std::string, double> numbers;
};

/** An update rule, applied element by element. Not thread-safe. */
class Optimizer {
 public:
  Optimizer() = default;
  /** What claim() says is of this object: a copy is claimed by nobody. */
  Optimizer(const Optimizer&) noexcept {}
  Optimizer& operator=(const Optimizer&) noexcept { return *this; }  // NOLINT: nothing to copy
  virtual ~Optimizer() = default;

  /**
   * For whoever is going to place() and resize(): as long as what it returns lives, nobody else
   * gets one. Throws InvalidArgument while another claim lives.
   */
  std::shared_ptr<const void> claim();

  /**
   * Parameters, gradients and all that the optimiser keeps lie in memory of the stream's device,
   * and updates are work of the stream. Before resize(); until then it is the CPU's inline stream.
   * Throws InvalidArgument for a device that it cannot update: unless overridden, any GPU.
   */
  virtual void place(const Stream& stream);
  /** Sets the size of the parameter space in elements, once; the state starts afresh. */
  virtual void resize(std::int64_t elements) = 0;
  /** Updates the parameters of `ranges`, which do not overlap, from their gradients. */
  virtual void update(std::span<const ParameterRange> ranges) = 0;
  /** Counts one step of training, for rules that change with time. */
  virtual void step() = 0;
  /**
   * Whether update() leaves an element whose gradient is zero as it is, with all that is kept of
   * it: then it need not be called for such elements.
   */
  virtual bool keeps_where_zero() const { return false; }

  /** What it has kept so far, read from where it lies. Blocks until a GPU has done its work. */
  virtual OptimizerState state() const = 0;
  /** Throws InvalidArgument, and changes nothing, if `state` is not of such a space and rule. */
  virtual void load_state(const OptimizerState& state) = 0;

 private:
  std::weak_ptr<const void> claim_;
};

/**
 * What SGD, Adam and Adagrad have in common: options with a learning rate, an age, and kernels that
 * run where the stream's memory is.
 */
template <class Options>
class BuiltInOptimizer : public Optimizer {
 public:
  void place(const Stream& stream) override;
  void step() override { ++steps_; }

  /** Those of now: set_lr() and the like change them. */
  const Options& options() const { return options_; }
  /** Takes effect with the next update. Throws InvalidArgument if negative or not finite. */
  void set_lr(float lr);

 protected:
  explicit BuiltInOptimizer(const Options& options);

  Options options_;
  std::int64_t elements_ = 0;
  std::int64_t steps_ = 0;
  std::shared_ptr<Arithmetic> arithmetic_;
};

/** What the names mean is in SGD's formulas. */
struct SgdOptions {
  float lr = 0.1F;            ///< the learning rate; SINGA's default
  float momentum = 0.0F;      ///< 0: none is kept
  float dampening = 0.0F;     ///< what a gradient lacks when it is added to the momentum
  float weight_decay = 0.0F;  ///< times the parameter, added to the gradient
  bool nesterov = false;      ///< Nesterov's momentum; needs momentum, and no dampening
};

/**
 * Stochastic gradient descent with PyTorch's formulas (torch.optim.SGD):
 *
 *     d = g + weight_decay * p
 *     m = d                                    the first time an element is updated
 *     m = momentum * m + (1 - dampening) * d   later
 *     p = p - lr * (nesterov ? d + momentum * m : m)
 *
 * in one pass over the memory. Without momentum, m is d and nothing is kept.
 */
class SGD final : public BuiltInOptimizer<SgdOptions> {
 public:
  /**
   * Throws InvalidArgument for a negative or non-finite lr, momentum or weight_decay, a
   * non-finite dampening, and for nesterov without momentum or with dampening.
   */
  explicit SGD(const SgdOptions& options);
  SGD(const SGD&) = delete;
  SGD& operator=(const SGD&) = delete;
  SGD(SGD&&) noexcept;
  SGD& operator=(SGD&&) noexcept;
  ~SGD() override;

  /** Takes effect with the next update. Throws InvalidArgument if negative or not finite, and where
   * it would be zero and was not, or was zero: then no momentum is kept. */
  void set_momentum(float momentum);

  void resize(std::int64_t elements) override;
  void update(std::span<const ParameterRange> ranges) override;
  /** Without momentum and weight decay. */
  bool keeps_where_zero() const override {
    return options_.momentum == 0.0F && options_.weight_decay == 0.0F;
  }
  /** The array "momentum", unless momentum is 0 ("started" too, with dampening), and the number
   * "steps". */
  OptimizerState state() const override;
  void load_state(const OptimizerState& state) override;

 private:
  void add_part(const ParameterRange& range, std::int64_t from, std::int64_t count, bool first);
  void add_tracked(const ParameterRange& range);
  void update_parts();
  void mark_started(std::int64_t begin, std::int64_t end);

  Buffer momentum_;  // empty without momentum
  // Parts of ranges that go through one pass, with what they have in common.
  std::vector<SgdPiece> parts_;
  float scale_ = 1.0F;
  bool first_ = false;
  // With dampening, the ranges [begin, end) whose momentum has started. Without, starting from
  // zero gives the same numbers.
  std::map<std::int64_t, std::int64_t> started_;
};

}  // namespace tutti
