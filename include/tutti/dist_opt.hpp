// DistOpt: wrap an optimiser, and every rank trains on its shard.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "tutti/communicator.hpp"
#include "tutti/dist_options.hpp"
#include "tutti/gradient.hpp"
#include "tutti/optimizer.hpp"
#include "tutti/step_statistics.hpp"

namespace tutti {

/**
 * Called by a backward pass for each gradient it has made: emit(parameter, gradient). What it
 * throws is meant to leave the backward pass. Good only while that pass runs, on its thread.
 */
using Emit = std::function<void(View parameter, const Gradient& gradient)>;
/** A backward pass: calls `emit` once for each parameter, usually the last layer's first. */
using Backward = std::function<void(const Emit& emit)>;

/**
 * SINGA's DistOpt. Averages the gradients of all ranks, then lets the wrapped optimiser update the
 * parameters, so that the replicas stay bitwise equal.
 *
 *     tutti::DistOpt opt(std::make_unique<tutti::SGD>(tutti::SgdOptions{.lr = 0.005F}));
 *     auto gradients = opt.register_parameters(parameters);
 *     for (...) opt.backward_and_update([&](const tutti::Emit& emit) { model.backward(emit); });
 *
 * Gradients are gathered in buckets; a full bucket starts its collective while later gradients
 * are still being computed. No parameter is written before the backward pass has returned, since
 * its later gradients still read them.
 *
 * All methods are collective unless they say otherwise: all ranks call them in the same order.
 * Parameters are f32, in CPU memory or all in memory of one GPU (see DistOptions::stream); those
 * without elements may be registered and emitted, or not. The sums below take either, too, a call
 * memory of one device, on the same stream; wait() blocks until a GPU has done them.
 *
 * Errors: those of Communicator, after which parameters may be updated in part; InvalidArgument
 * where a parameter is unknown, missing, repeated, or emitted in another order than in the first
 * backward pass, naming the first difference. If that, or anything that the backward pass throws,
 * happens before a bucket of the step was sent, nothing has changed and the step may be tried
 * again. Otherwise the communicator is aborted, so that the other ranks get PeerLost naming this
 * one instead of waiting. A model that fits one bucket sends it after the backward pass. Not
 * thread-safe.
 */
class DistOpt {
 public:
  /**
   * Over all ranks that a launcher has started (see Communicator). This and the next constructor
   * are collective, block until all ranks have come, and throw what Communicator's throw; all three
   * throw InvalidArgument if an option makes no sense or `optimizer` is null.
   */
  explicit DistOpt(std::shared_ptr<Optimizer> optimizer, const DistOptions& options = {});
  /** Over `world_size` ranks of this host that hold `id`; MPI is not touched. */
  DistOpt(std::shared_ptr<Optimizer> optimizer, const UniqueId& id, int local_rank, int world_size,
          const DistOptions& options = {});
  /** Over a communicator that the caller goes on using; options.comm is not looked at. Local. */
  DistOpt(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<Communicator> communicator,
          const DistOptions& options = {});
  DistOpt(const DistOpt&) = delete;
  DistOpt& operator=(const DistOpt&) = delete;
  DistOpt(DistOpt&&) noexcept;
  DistOpt& operator=(DistOpt&&) noexcept;
  /** Waits for what is under way, at most until the deadline. Never throws. */
  ~DistOpt();

  /** Those of the communicator. */
  int world_size() const;
  int local_rank() const;
  int global_rank() const;
  /** What the gradients travel through. The caller may use it, too, between steps. */
  Communicator& communicator() const;

  /**
   * Once, before the first backward pass, with the parameters in the model's order. Broadcasts
   * their values from rank 0, lays out the buckets in symmetric memory (the last parameter
   * first, as backward passes go), and returns, in the order given, where the model may write
   * each gradient so that nothing is copied: f32, zero at first, valid as long as the DistOpt.
   * Such a view belongs to the model from the end of one step to its emission in the next.
   * Throws InvalidArgument on every rank, naming ranks, if their lists differ in sizes;
   * MismatchError on every rank, which shows the first that differs and names its rank, if only in
   * Parameter::layout, after which the communicator is as good as before; and InvalidArgument on
   * this rank for anything but f32, for parameters of different devices, for such that share
   * memory, for an optimiser that cannot update that device or with which another DistOpt, while it
   * lives, has registered parameters, and if parameters are registered already.
   *
   * Of a table (Parameter::row_elements) no view is returned: where its gradient is emitted as
   * rows, backward_and_update and backward_and_update_half send these alone, to all ranks, which
   * add them up in their order; unless together they are as many as the table has, or a rank has
   * emitted a whole gradient: then it travels whole. Either way the table is updated as if by the
   * whole gradient; where that leaves alone what no row touches (Optimizer::keeps_where_zero), only
   * the rows are. The other methods send the gradients of tables whole.
   *
   * Without this call the first backward pass registers what it emits, in its order; parameters
   * that then differ between the ranks are refused on all of them, and stay unregistered. A rank
   * knows its parameters by their addresses, which mean nothing to another, so it goes by sizes and
   * values alone: all ranks have to emit in the same order. Another order of two parameters that
   * are equal in both, biases of zeros say, is not noticed, and mixes up their gradients. Call this
   * with the model's list wherever the order of a pass might not be the same on all ranks.
   */
  std::vector<View> register_parameters(std::span<const Parameter> parameters);

  /** Whether there are parameters, by that call or by a first pass, whose step may yet have failed.
   * Their memory is the DistOpt's to read and write from then on. Local. */
  bool is_registered() const;

  /** Another DistOpt may have the optimiser; steps of this one throw CommunicationError from now
   * on, while its gradients stay where they are. A step that fails half-way does the same. Local.
   */
  void release_optimizer();

  /** One step in the mode of the options: whichever of the following methods that is. */
  void operator()(const Backward& backward, std::optional<std::int64_t> threshold = std::nullopt);

  /**
   * One step: runs `backward`, averages the gradients over the ranks, updates, counts a step.
   * Blocks until all parameters are updated. Sums that all_reduce started go on. On a GPU, a
   * gradient is emitted once the work that makes it has been launched.
   *
   * This and the other modes (their formulas: docs/numerics.md) can follow each other in any
   * order, with all ranks in the same mode. `threshold` is the size of a bucket in elements, the
   * same on all ranks; where it is left out, DistOptions::bucket_elements.
   */
  void backward_and_update(const Backward& backward,
                           std::optional<std::int64_t> threshold = std::nullopt);
  /**
   * The same with 16 bits an element on the wire (DistOptions::half): gradients are divided by
   * world_size, rounded, and summed in float. With `clipping`, finite elements are first limited to
   * [-clip_value, clip_value], which is positive. Elements of the average that are not finite are
   * so on all ranks, and are counted in the statistics.
   */
  void backward_and_update_half(const Backward& backward,
                                std::optional<std::int64_t> threshold = std::nullopt,
                                bool clipping = false, float clip_value = 100.0F);
  /**
   * Local descent: every rank updates all parameters with its own gradients; then one partition of
   * the parameters is averaged over the ranks, each step the next one. The first such step cuts the
   * partitions, like buckets of `threshold`, and they stay: later ones do not look at it. The
   * replicas differ in between: call synchronize() before they are evaluated or saved.
   */
  void backward_and_partial_update(const Backward& backward,
                                   std::optional<std::int64_t> threshold = std::nullopt);
  /**
   * Sends a few elements of each bucket of n gradients, and averages these. With `topK`, the
   * ceil(spars * n) of largest magnitude, 0 < spars <= 1; otherwise those whose magnitude is at
   * least `spars`, not negative. With `corr`, what is not sent is kept (the residual) and added to
   * the next gradients; without, it is lost, and a residual of earlier steps waits. Elements that
   * are not finite are always sent. See also SparseOptions, which need `corr`.
   */
  void backward_and_sparse_update(const Backward& backward,
                                  std::optional<std::int64_t> threshold = std::nullopt,
                                  double spars = 0.05, bool topK = false, bool corr = true);
  /**
   * Sends the gradients through a compressor of the caller's (DistOptions::compressor), which the
   * first such step makes. What it keeps is part of state().
   */
  void backward_and_custom_update(const Backward& backward,
                                  std::optional<std::int64_t> threshold = std::nullopt);
  /**
   * Averages all parameters over the ranks, after which they are the same bits. Blocks. They travel
   * in the gradients' memory: call it between a step and the next backward pass, before gradients
   * are written to the views of register_parameters().
   */
  void synchronize();

  /**
   * Starts the sum of `tensor`, whose dtype has one, over the ranks, in place; wait() ends it, and
   * until then the tensor is not to be touched. Not an average.
   */
  void all_reduce(View tensor);
  /**
   * With send = false, copies `tensors`, all of one dtype, into the fused buffer, which grows as
   * needed. With send = true, starts one sum over all that was filled; wait() ends it and writes
   * the sums back to `tensors`, which must be those that were filled, in the order of filling
   * (InvalidArgument otherwise). Filling again before wait() is fine.
   */
  void fused_all_reduce(std::span<const View> tensors, bool send = true);
  /**
   * As all_reduce and fused_all_reduce, with f32 tensors that travel in DistOptions::half: the sum
   * over the ranks of tensor / world_size, rounded, times world_size.
   */
  void all_reduce_half(View tensor);
  void fused_all_reduce_half(std::span<const View> tensors, bool send = true);
  /**
   * Starts the sum over the ranks of the elements of `tensor` (f32) that backward_and_sparse_update
   * would send of it; wait() writes it to `tensor`, zero elsewhere. With `accumulation`, f32 and as
   * long, that is the residual. Not an average.
   */
  void sparsification(View tensor, std::optional<View> accumulation, double spars, bool topK);
  /** The same with `tensors` taken as one, and an accumulation as long as all of them. */
  void fused_sparsification(std::span<const View> tensors, std::optional<View> accumulation,
                            double spars, bool topK);
  /** Ends what the sums above started: writes their results to the tensors. Blocks, at most until
   * the deadline; throws what the sums threw. */
  void wait();

  /**
   * Divides `gradient`, a sum, by world_size (by multiplying with its reciprocal), then updates a
   * registered parameter. Local. Throws InvalidArgument while a sum is under way: wait() first.
   */
  void update(View parameter, ConstView gradient);
  /** Counts one step of the optimiser; backward_and_update does it by itself. Local. */
  void step();

  /**
   * All that this rank has to remember besides the parameters: the optimiser's state, and under
   * names that begin with "dist." what the modes keep. Local. Where that is the rank's own (a
   * residual, momentum of partial updates) it holds the numbers "dist.rank" and "dist.world_size";
   * otherwise it is the same on all ranks.
   */
  OptimizerState state() const;
  /**
   * Training goes on as if it had not stopped, to the bit, in every mode, if each rank loads its
   * state and has its parameters. Local, and after register_parameters(). Throws InvalidArgument,
   * and changes nothing, if `state` is not of these parameters, or another rank's own.
   */
  void load_state(const OptimizerState& state);

  /** Of the last backward_and_... step on this rank, or of a synchronize() since. */
  StepStatistics statistics() const;
  /** statistics().bytes_sent */
  std::int64_t bytes_per_step() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tutti
