// The table of DistOpt's modes.
#include <algorithm>
#include <array>
#include <string>

#include "tutti/dist_options.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

using Options = std::string_view;

constexpr std::array<Options, 2> kOfHalf{"clipping", "clip_Value"};
constexpr std::array<Options, 6> kOfTopK{"spars",     "corr",           "momentum_correction",
                                         "clip_norm", "warm_up_epochs", "epoch_steps"};
constexpr std::span<const Options> kOfThreshold = std::span(kOfTopK).first<4>();

constexpr std::array<NamedMode, 6> kModes{{
    {"fp32", DistMode::full, "backward_and_update"},
    {"fp16", DistMode::half, "backward_and_update_half", DType::f16, kOfHalf},
    {"bf16", DistMode::half, "backward_and_update_half", DType::bf16, kOfHalf},
    {"partialUpdate", DistMode::partial, "backward_and_partial_update"},
    {"sparseTopK", DistMode::top_k, "backward_and_sparse_update", {}, kOfTopK},
    {"sparseThreshold", DistMode::threshold, "backward_and_sparse_update", {}, kOfThreshold},
}};

std::string list_of_names() {
  std::string list;
  for (const NamedMode& mode : kModes) {
    if (&mode != &kModes.front()) list += &mode == &kModes.back() ? " or " : ", ";
    list += mode.name;
  }
  return list;
}

}  // namespace

bool NamedMode::takes(std::string_view option) const {
  return std::find(options.begin(), options.end(), option) != options.end();
}

std::span<const NamedMode> named_modes() { return kModes; }

const NamedMode& named_mode(std::string_view name) {
  const auto* const mode =
      std::find_if(kModes.begin(), kModes.end(), [&](const auto& row) { return row.name == name; });
  if (mode != kModes.end()) return *mode;
  throw InvalidArgument("dist_option is '" + std::string(name) + "', but must be " +
                        list_of_names());
}

}  // namespace tutti
