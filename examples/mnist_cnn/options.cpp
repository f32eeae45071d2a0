// The command line: one table of options, one check for each kind of value.
#include "options.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <string_view>
#include <vector>

#include "tutti/dist_options.hpp"

namespace mnist {
namespace {

constexpr const char* kHelp =
    R"(Trains a CNN on MNIST, data-parallel, with tutti::DistOpt.

  tutti run -n 2 mnist_dist [options]   ranks of a launcher: also mpiexec -n 2, srun, torchrun
  mnist_dist --ranks 2 [options]        forks the ranks itself

  --data-dir DIR        MNIST's IDX files, plain or .gz; else $TUTTI_MNIST_DIR, else
                        data/mnist, else digits are generated on the spot
  --epochs N            epochs in all, with those before --resume (10)
  --batch-size N        images per rank and step (64)
  --lr X                learning rate (0.005)
  --momentum X          momentum (0.9)
  --weight-decay X      weight decay (1e-5)
  --seed N              initial weights, shuffling, generated digits (0)
  --dist-option NAME    how the ranks keep in step (fp32):
                        %
  --spars S             sparseTopK: the fraction of a bucket that is sent; sparseThreshold: the
                        least magnitude that is sent (0.05)
  --momentum-correction sparse modes: apply the momentum before the selection
  --clip-norm X         sparse modes: clip the norm of each gradient to X / sqrt(ranks) (0: no)
  --warm-up-epochs N    sparseTopK: send more during the first N epochs (0)
  --device NAME         auto, cpu or cuda; auto takes GPUs where all ranks can (auto)
  --save FILE           write a checkpoint after each epoch
  --resume FILE         go on from a checkpoint, with its seed
  --json FILE           write one JSON object per epoch
  --ranks N             fork N ranks on this machine, without MPI
  --help                this text
)";

/** What DistOpt can do. */
std::vector<std::string_view> mode_names() {
  std::vector<std::string_view> names;
  for (const tutti::NamedMode& mode : tutti::named_modes()) names.push_back(mode.name);
  return names;
}

std::string list_of(const std::vector<std::string_view>& words, const char* between) {
  std::string list;
  for (const std::string_view word : words) {
    list.append(list.empty() ? "" : between).append(word);
  }
  return list;
}

[[noreturn]] void refuse(const std::string& name, std::string_view value,
                         const std::string& expected) {
  throw OptionError(name + ": '" + std::string(value) + "' is not " + expected);
}

template <class T>
T parse_number(const std::string& name, std::string_view text, T low, T high,
               const std::string& expected) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool in_range = value >= low && value <= high;  // false for NaN
  if (error != std::errc{} || end != text.data() + text.size() || !in_range) {
    refuse(name, text, expected);
  }
  return value;
}

/** Stores the value of one option, or refuses it. */
using Store = std::function<void(Options&, const std::string& name, std::string_view value)>;

template <class T>
Store number(T Options::*member, T low, T high, const std::string& expected) {
  return [=](Options& options, const std::string& name, std::string_view value) {
    options.*member = parse_number<T>(name, value, low, high, expected);
  };
}

Store path(std::filesystem::path Options::*member) {
  return [=](Options& options, const std::string& name, std::string_view value) {
    if (value.empty()) refuse(name, value, "a path");
    options.*member = value;
  };
}

Store choice(std::string Options::*member, const std::vector<std::string_view>& allowed) {
  return [=](Options& options, const std::string& name, std::string_view value) {
    if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
      refuse(name, value, list_of(allowed, " or "));
    }
    options.*member = value;
  };
}

const std::map<std::string, Store>& table() {
  constexpr float kMax = 1e9F;
  static const std::map<std::string, Store> kTable{
      {"--data-dir", path(&Options::data_dir)},
      {"--epochs", number<std::int64_t>(&Options::epochs, 1, kMostEpochs, "a number from 1 on")},
      {"--batch-size", number(&Options::batch_size, 1, 4096, "a number from 1 to 4096")},
      {"--lr", number(&Options::lr, 0.0F, kMax, "a number from 0 on")},
      {"--momentum", number(&Options::momentum, 0.0F, kMax, "a number from 0 on")},
      {"--weight-decay", number(&Options::weight_decay, 0.0F, kMax, "a number from 0 on")},
      {"--seed", number<std::uint64_t>(&Options::seed, 0, UINT64_MAX, "a number from 0 on")},
      {"--dist-option", choice(&Options::dist_option, mode_names())},
      {"--spars", number(&Options::spars, 0.0, 1e9, "a number from 0 on")},
      {"--clip-norm", number(&Options::clip_norm, 0.0F, kMax, "a number from 0 on")},
      {"--warm-up-epochs",
       number<std::int64_t>(&Options::warm_up_epochs, 0, kMostEpochs, "a number from 0 on")},
      {"--device", choice(&Options::device, {"auto", "cpu", "cuda"})},
      {"--save", path(&Options::save)},
      {"--resume", path(&Options::resume)},
      {"--json", path(&Options::json)},
      {"--ranks", number(&Options::ranks, 1, 1024, "a number from 1 to 1024")},
  };
  return kTable;
}

/** Options as they were given, by their names. */
using Given = std::map<std::string, std::string, std::less<>>;

/** Refuses what the mode does not read. */
void check_mode(const Options& options, const Given& given) {
  const tutti::NamedMode& mode = tutti::named_mode(options.dist_option);
  if (mode.mode == tutti::DistMode::top_k && (options.spars == 0.0 || options.spars > 1.0)) {
    throw OptionError("--spars: sparseTopK sends a fraction above 0 and up to 1");
  }
  const auto check = [&](std::string_view option, std::string_view keyword, bool asked) {
    const auto found = given.find(option);
    if (found == given.end() || !asked || mode.takes(keyword)) return;
    const std::string value = found->second.empty() ? "" : " " + found->second;
    throw OptionError(found->first + value + ": not an option of " + options.dist_option);
  };
  check("--spars", "spars", true);
  check("--momentum-correction", "momentum_correction", true);
  check("--clip-norm", "clip_norm", options.clip_norm > 0.0F);
  check("--warm-up-epochs", "warm_up_epochs", options.warm_up_epochs > 0);
}

}  // namespace

std::string help() {
  std::string text = kHelp;
  return text.replace(text.find('%'), 1, list_of(mode_names(), ", "));
}

Options parse_options(std::span<const char* const> arguments) {
  Options options;
  Given given;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string argument = arguments[i];
    if (argument == "--help" || argument == "-h") {
      options.help = true;
      continue;
    }
    if (argument == "--momentum-correction") {
      options.momentum_correction = true;
      given[argument].clear();
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name = argument.substr(0, equals);
    const auto entry = table().find(name);
    if (entry == table().end()) throw OptionError("unknown option '" + argument + "', see --help");
    if (equals == std::string::npos && ++i == arguments.size()) {
      throw OptionError(name + ": its value is missing");
    }
    std::string& value = given[name];
    value = equals == std::string::npos ? arguments[i] : argument.substr(equals + 1);
    entry->second(options, name, value);
  }
  check_mode(options, given);
  return options;
}

}  // namespace mnist
