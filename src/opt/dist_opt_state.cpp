// What DistOpt's modes remember, as part of the optimiser's state.
#include <algorithm>
#include <utility>

#include "opt/dist_opt_impl.hpp"
#include "opt/optimizers/state_checks.hpp"

namespace tutti {
namespace {

const std::string kPrefix = "dist.";
const std::string kLayout = "dist.layout";
const std::string kRank = "dist.rank";
const std::string kWorldSize = "dist.world_size";
const std::string kResidual = "dist.residual";  // of the sparse compressor
const std::string kVelocity = "dist.velocity";
const std::string kCustom = "dist.custom.";  // before the names of the caller's compressor
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

/** Takes the entries whose names begin with `prefix` out of `entries`, and that off their names. */
template <class Map>
Map take(Map& entries, const std::string& prefix) {
  Map part;
  for (auto entry = entries.begin(); entry != entries.end();) {
    const auto here = entry++;
    if (!here->first.starts_with(prefix)) continue;
    part.emplace(here->first.substr(prefix.size()), std::move(here->second));
    entries.erase(here);
  }
  return part;
}

void check_length(const std::string& whose, const std::vector<float>& array, std::int64_t length,
                  const char* of_what) {
  if (static_cast<std::int64_t>(array.size()) == length) return;
  throw InvalidArgument(whose + " has " + std::to_string(array.size()) + " elements, but " +
                        of_what + " has " + std::to_string(length));
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

/** The same with arrays in the order of the memory of gradients. */
OptimizerState to_memory(const Reducer& reducer, OptimizerState state) {
  for (auto& entry : state.arrays) entry.second = to_memory(reducer, entry.second);
  return state;
}

bool is_empty(const OptimizerState& state) { return state.arrays.empty() && state.numbers.empty(); }

}  // namespace

OptimizerState DistOpt::Impl::state() const {
  OptimizerState state = optimizer_->state();
  if (!model_) return state;
  const Model& model = *model_;
  state.numbers[kLayout] = layout_of(model.table.ranges());
  bool own = false;
  const auto add = [&](const std::string& prefix, const Compressor& compressor) {
    const OptimizerState kept = compressor.state();
    for (const auto& [name, memory] : kept.arrays) {
      check_length("the compressor's array '" + name + "'", memory, model.site.elements,
                   "the memory of all gradients");
      state.arrays[prefix + name] = to_space(model.reducer, model.table.elements(), memory);
    }
    for (const auto& [name, number] : kept.numbers) state.numbers[prefix + name] = number;
    own = own || !is_empty(kept);
  };
  if (model.sparse) add(kPrefix, *model.sparse);
  if (model.custom) add(kCustom, *model.custom);
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

void DistOpt::Impl::check_owner(const OptimizerState& state, bool keeps) const {
  if (keeps || count_in(state, kPartialSteps).value_or(0) > 0) {
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
  OptimizerState modes{part_of(state.arrays, true), part_of(state.numbers, true)};
  OptimizerState kept;  // by the caller's compressor
  if (options_.compressor) kept = {take(modes.arrays, kCustom), take(modes.numbers, kCustom)};
  refuse_unknown("DistOpt", modes,
                 {kLayout, kRank, kWorldSize, kSparseSteps, kPartialSteps, kPartitionElements},
                 {kResidual, kVelocity});
  const auto layout = modes.numbers.find(kLayout);
  if (layout != modes.numbers.end() && layout->second != layout_of(model.table.ranges())) {
    throw InvalidArgument(
        "the state is of a model whose parameters have other sizes, or another order of them");
  }
  check_owner(modes, !modes.arrays.empty() || !is_empty(kept));
  const auto check_lengths = [&](const auto& arrays, const std::string& prefix) {
    for (const auto& [name, array] : arrays) {
      std::string what = "the state's array '";
      what.append(prefix).append(name).append("'");
      check_length(what, array, model.table.elements(), "the parameter space");
    }
  };
  check_lengths(modes.arrays, "");
  check_lengths(kept.arrays, kCustom);
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
    sparse = make_sparse_compressor(model.site);
    sparse->load_state(to_memory(model.reducer, {take(modes.arrays, kPrefix), {}}));
  }
  std::unique_ptr<Compressor> custom;
  if (!is_empty(kept)) {
    custom = make_custom();
    custom->load_state(to_memory(model.reducer, std::move(kept)));
  }
  optimizer_->load_state({part_of(state.arrays, false), part_of(state.numbers, false)});
  model.sparse = std::move(sparse);
  model.custom = std::move(custom);
  model.sparse_steps = sparse_steps;
  model.partitions = std::move(partitions);
}

}  // namespace tutti
