// What is behind DistOpt: the registered model, and what its modes keep.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "opt/agreement.hpp"
#include "opt/bucket.hpp"
#include "opt/compressors/half.hpp"
#include "opt/compressors/plain.hpp"
#include "opt/compressors/sparse.hpp"
#include "opt/emission_order.hpp"
#include "opt/parameter_table.hpp"
#include "opt/pending_sums.hpp"
#include "opt/reducer.hpp"
#include "opt/step_plan.hpp"
#include "tutti/dist_opt.hpp"

namespace tutti {

/** The partitions of the parameters that partial updates average in turn. */
struct Partitions {
  std::int64_t elements = 0;  ///< that each has, about
  std::vector<Bucket> list;
  std::int64_t steps = 0;  ///< partial updates so far

  Bucket next() const {
    return list.empty() ? Bucket() : list[static_cast<std::size_t>(steps) % list.size()];
  }
};

/** A model that was registered. */
struct Model {
  Model(ParameterTable table_in, std::shared_ptr<const void> claim_in,
        const std::shared_ptr<Communicator>& communicator, bool missing_as_zero, const Stream& home)
      : table(std::move(table_in)),
        claim(std::move(claim_in)),
        order(table, missing_as_zero),
        site{communicator, 0, home},
        plain(site),
        reducer(communicator, table.ranges(), home, table.row_elements()) {
    site.elements = reducer.memory_elements();
  }

  ParameterTable table;
  std::shared_ptr<const void> claim;  // on the optimiser
  EmissionOrder order;
  CompressorSite site;
  PlainCompressor plain;
  // Those of modes that were used, or whose state was loaded.
  std::unique_ptr<HalfCompressor> half;
  std::unique_ptr<SparseCompressor> sparse;
  std::unique_ptr<Compressor> custom;
  std::int64_t sparse_steps = 0;
  Partitions partitions;
  Reducer reducer;  // ends first: its thread works on the packets
};

class DistOpt::Impl {
 public:
  Impl(std::shared_ptr<Optimizer> optimizer, std::shared_ptr<Communicator> communicator,
       const DistOptions& options)
      : options_(options),
        optimizer_(std::move(optimizer)),
        communicator_(std::move(communicator)),
        sums_(communicator_, options.half, options.stream) {}

  std::vector<View> register_parameters(std::span<const Parameter> parameters);
  bool is_registered() const { return model_ != nullptr; }
  void release_optimizer();
  /** One step of any mode. */
  void train(const StepPlan& plan, const Backward& backward);
  void synchronize();
  void update(View parameter, ConstView gradient);
  OptimizerState state() const;
  void load_state(const OptimizerState& state);

  Optimizer& optimizer() const { return *optimizer_; }
  Communicator& communicator() const { return *communicator_; }
  const DistOptions& options() const { return options_; }
  PendingSums& sums() { return sums_; }
  StepStatistics statistics() const {
    return model_ ? model_->reducer.statistics() : StepStatistics();
  }

 private:
  /** A gradient of the first backward pass, where nothing was registered. */
  struct FirstGradient {
    Parameter parameter;
    Buffer values;
    Buffer rows;  // their indices, of a table
  };

  void refuse_inside_backward(std::string_view method) const;
  void refuse_if_given_up() const;

  std::unique_ptr<Model> agree(std::span<const Parameter> parameters, ParameterTable::Order order,
                               Agreement agreement);
  void adopt(std::unique_ptr<Model> model);
  void run(const Backward& backward, const Emit& emit);
  void train_first(const StepPlan& plan, const Backward& backward);
  Compressor& prepare(const StepPlan& plan);
  std::unique_ptr<Compressor> make_custom() const;
  void give_up(const std::string& reason);

  void check_owner(const OptimizerState& state, bool keeps) const;

  DistOptions options_;
  std::shared_ptr<Optimizer> optimizer_;
  std::shared_ptr<Communicator> communicator_;
  PendingSums sums_;
  std::unique_ptr<Model> model_;  // once parameters are registered
  bool in_backward_ = false;
  std::exception_ptr emit_error_;  // of the present backward pass, which may have swallowed it
  std::string given_up_;           // why no further step is possible; empty while one is
};

}  // namespace tutti
