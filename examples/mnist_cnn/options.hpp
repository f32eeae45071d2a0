// The command line.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <stdexcept>
#include <string>

namespace mnist {

/** An option is unknown or its value makes no sense; the message names both. */
class OptionError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

constexpr std::int64_t kMostEpochs = 1'000'000;

struct Options {
  std::filesystem::path data_dir;
  std::int64_t epochs = 10;
  int batch_size = 64;
  float lr = 0.005F;
  float momentum = 0.9F;
  float weight_decay = 1e-5F;
  std::uint64_t seed = 0;
  std::string dist_option = "fp32";
  double spars = 0.05;  ///< sparseTopK: the fraction sent; sparseThreshold: the least magnitude
  bool momentum_correction = false;
  float clip_norm = 0.0F;
  std::int64_t warm_up_epochs = 0;
  std::string device = "auto";
  std::filesystem::path save;
  std::filesystem::path resume;
  std::filesystem::path json;
  int ranks = 0;  ///< 0: the ranks come from a launcher
  bool help = false;
};

/** Understands `--name value` and `--name=value`. Throws OptionError. */
Options parse_options(std::span<const char* const> arguments);

/** What --help prints. */
std::string help();

}  // namespace mnist
