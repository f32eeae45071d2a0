// What DistOpt's modes remember, as part of the optimiser's state.
#include <algorithm>
#include <utility>

#include "opt/dist_opt_impl.hpp"
#include "opt/state_checks.hpp"

namespace tutti {
namespace {

const std::string kPrefix = "dist.";
const std::string kLayout = "dist.layout";
const std::string kRank = "dist.rank";
const std::string kWorldSize = "dist.world_size";
const std::string kResidual = "dist.residual";
const std::string kVelocity = "dist.velocity";
const std::string kSparseSteps = "dist.sparse_steps";
const std::string kPartialSteps = "dist.partial_steps";
const std::string kPartitionElements = "dist.partition_elements";

/** The entries of the modes, or those of the wrapped optimiser. */
template <class Map>
Map part_of(const Map& entries, bool modes) {
  Map part;
  for (const auto& entry : entries) {
    if (entry.first.starts_with(kPrefix) == modes) part.insert(entry);
  }
  return part;
}

/** A number that tells models apart whose parameters have other sizes. It goes by their order in
 * the parameter space, which does not tell whether they were listed or found by a first pass. */
double layout_of(std::vector<ParameterRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.offset < b.offset; });
  std::uint64_t hash = 0;
  for (const ParameterRange& range : ranges) {
    hash = (hash ^ static_cast<std::uint64_t>(range.count)) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32U;
  }
  return static_cast<double>(hash >> 11U);  // as many bits as a double holds
}

/** From the order of the parameter space to that of the memory of gradients, or back. */
template <class Copy>
void for_each_gradient(const Reducer& reducer, const Copy& copy) {
  if (reducer.parameters().empty()) return;
  const float* memory = reducer.parameters().front().gradient;
  for (const ParameterRange& range : reducer.parameters()) {
    copy(range.offset, range.gradient - memory, range.count);
  }
}

std::vector<float> to_space(const Reducer& reducer, std::int64_t elements,
                            const std::vector<float>& memory) {
  std::vector<float> space(static_cast<std::size_t>(elements));
  for_each_gradient(reducer, [&](std::int64_t offset, std::int64_t place, std::int64_t count) {
    std::copy_n(memory.begin() + place, count, space.begin() + offset);
  });
  return space;
}

std::vector<float> to_memory(const Reducer& reducer, const std::vector<float>& space) {
  std::vector<float> memory(static_cast<std::size_t>(reducer.memory_elements()));
  for_each_gradient(reducer, [&](std::int64_t offset, std::int64_t place, std::int64_t count) {
    std::copy_n(space.begin() + offset, count, memory.begin() + place);
  });
  return memory;
}

}  // namespace

OptimizerState DistOpt::Impl::state() const {
  OptimizerState state = optimizer_->state();
  if (!model_) return state;
  const Model& model = *model_;
  state.numbers[kLayout] = layout_of(model.table.ranges());
  bool own = false;
  const auto add = [&](const std::string& name, const std::vector<float>& memory) {
    if (memory.empty()) return;
    state.arrays[name] = to_space(model.reducer, model.table.elements(), memory);
    own = true;
  };
  if (model.sparse) {
    add(kResidual, model.sparse->residual());
    add(kVelocity, model.sparse->velocity());
  }
  if (model.sparse_steps > 0) {
    state.numbers[kSparseSteps] = static_cast<double>(model.sparse_steps);
  }
  if (model.partitions.steps > 0) {
    state.numbers[kPartialSteps] = static_cast<double>(model.partitions.steps);
    state.numbers[kPartitionElements] = static_cast<double>(model.partitions.elements);
    own = true;
  }
  if (own) {
    state.numbers[kRank] = communicator_->global_rank();
    state.numbers[kWorldSize] = communicator_->world_size();
  }
  return state;
}

void DistOpt::Impl::check_owner(const OptimizerState& state) const {
  if (!state.arrays.empty() || count_in(state, kPartialSteps).value_or(0) > 0) {
    for (const std::string& name : {kLayout, kRank, kWorldSize}) {
      if (state.numbers.contains(name)) continue;
      throw InvalidArgument("the state has no number '" + name +
                            "', though it holds what belongs to a rank");
    }
  }
  const auto refuse_other = [&](const std::string& name, const char* what, int own) {
    const std::optional<std::int64_t> value = count_in(state, name);
    if (!value || *value == own) return;
    throw InvalidArgument("the state is of " + std::string(what) + " " + std::to_string(*value) +
                          ", and this is " + what + " " + std::to_string(own) +
                          ": residuals and local momentum belong to a rank");
  };
  refuse_other(kWorldSize, "world size", communicator_->world_size());
  refuse_other(kRank, "rank", communicator_->global_rank());
}

void DistOpt::Impl::load_state(const OptimizerState& state) {
  refuse_inside_backward("load_state");
  refuse_if_given_up();
  if (!model_) {
    throw InvalidArgument(
        "load_state: no parameters are registered; call register_parameters() before it");
  }
  Model& model = *model_;
  const OptimizerState modes{part_of(state.arrays, true), part_of(state.numbers, true)};
  refuse_unknown("DistOpt", modes,
                 {kLayout, kRank, kWorldSize, kSparseSteps, kPartialSteps, kPartitionElements},
                 {kResidual, kVelocity});
  const auto layout = modes.numbers.find(kLayout);
  if (layout != modes.numbers.end() && layout->second != layout_of(model.table.ranges())) {
    throw InvalidArgument(
        "the state is of a model whose parameters have other sizes, or another order of them");
  }
  check_owner(modes);
  for (const auto& [name, array] : modes.arrays) {
    if (static_cast<std::int64_t>(array.size()) == model.table.elements()) continue;
    throw InvalidArgument("the state's array '" + name + "' has " + std::to_string(array.size()) +
                          " elements, but the parameter space has " +
                          std::to_string(model.table.elements()));
  }
  Partitions partitions;
  partitions.steps = count_in(modes, kPartialSteps).value_or(0);
  if (partitions.steps > 0) {
    partitions.elements = count_in(modes, kPartitionElements).value_or(0);
    if (partitions.elements < 1) {
      throw InvalidArgument("the state has partial updates, but no number '" + kPartitionElements +
                            "' above 0");
    }
    partitions.list = model.reducer.cut(partitions.elements);
  }
  const std::int64_t sparse_steps = count_in(modes, kSparseSteps).value_or(0);
  std::unique_ptr<SparseCompressor> sparse;
  if (!modes.arrays.empty()) {
    sparse = make_sparse(model);
    for (const auto& [name, array] : modes.arrays) {
      const std::vector<float> memory = to_memory(model.reducer, array);
      name == kResidual ? sparse->load_residual(memory) : sparse->load_velocity(memory);
    }
  }
  optimizer_->load_state({part_of(state.arrays, false), part_of(state.numbers, false)});
  model.sparse = std::move(sparse);
  model.sparse_steps = sparse_steps;
  model.partitions = std::move(partitions);
}

}  // namespace tutti
