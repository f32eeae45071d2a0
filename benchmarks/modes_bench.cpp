// What a step of each of DistOpt's modes takes, from "gradients ready on every rank" to "parameters
// updated on every rank", with SGD, momentum and weight decay, in one bucket.
//
//   mpiexec -n 2 modes_bench [--elements 431080,4194304,16777216] [--rounds 15]
//
// Gradients are normal, rewritten before every step; the modes take turns, after one step that does
// not count. Medians of the slowest rank in microseconds, and the phases of rank 0's median step.
// Prints JSON Lines. Every replica is compared with the others at the end: `checked`.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/numbers.hpp"
#include "tutti/dist_opt.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using tutti::Backward;
using tutti::DistOpt;

struct Mode {
  std::string name;
  std::function<void(DistOpt&, const Backward&, std::int64_t elements)> step;
  tutti::DType half = tutti::DType::f16;
  bool replicas_agree = true;
};

Mode top_k(const std::string& name, double density) {
  return {name, [density](DistOpt& opt, const Backward& backward, std::int64_t elements) {
            opt.backward_and_sparse_update(backward, elements, density, true);
          }};
}

std::vector<Mode> modes() {
  const auto full = [](DistOpt& opt, const Backward& backward, std::int64_t elements) {
    opt.backward_and_update(backward, elements);
  };
  const auto half = [](DistOpt& opt, const Backward& backward, std::int64_t elements) {
    opt.backward_and_update_half(backward, elements);
  };
  const auto partial = [](DistOpt& opt, const Backward& backward, std::int64_t) {
    opt.backward_and_partial_update(backward, 1);  // a partition a parameter
  };
  const auto threshold = [](DistOpt& opt, const Backward& backward, std::int64_t elements) {
    opt.backward_and_sparse_update(backward, elements, 8.0, false);
  };
  return {{"fp32", full},
          {"fp16", half},
          {"bf16", half, tutti::DType::bf16},
          {"partial", partial, tutti::DType::f16, false},
          top_k("top-K 1 %", 0.01),
          top_k("top-K 0.1 %", 0.001),
          {"threshold", threshold}};
}

constexpr std::size_t kParameters = 4;  // of equal size

/** A model that one mode trains. */
class Contestant {
 public:
  Contestant(Mode mode, const std::shared_ptr<tutti::Communicator>& communicator,
             std::int64_t elements)
      : mode_(std::move(mode)),
        elements_(elements),
        values_(kParameters, std::vector<float>(static_cast<std::size_t>(elements) / kParameters)) {
    tutti::DistOptions options;
    options.half = mode_.half;
    opt_ = std::make_unique<DistOpt>(std::make_shared<tutti::SGD>(tutti::SgdOptions{
                                         .lr = 0.01F, .momentum = 0.9F, .weight_decay = 1e-4F}),
                                     communicator, options);
    std::vector<tutti::Parameter> parameters;
    for (auto& value : values_) parameters.push_back({std::span<float>(value), ""});
    gradients_ = opt_->register_parameters(parameters);
  }

  /** Microseconds of a step on the slowest rank, without the writing of the gradients. */
  double step(const std::vector<float>& gradient) {
    Clock::time_point ready;
    tutti::Communicator& communicator = opt_->communicator();
    mode_.step(
        *opt_,
        [&](const tutti::Emit& emit) {
          for (std::size_t i = kParameters; i-- > 0;) {
            std::memcpy(gradients_[i].data, gradient.data(),
                        static_cast<std::size_t>(gradients_[i].bytes()));
            emit(std::span<float>(values_[i]), gradients_[i]);
          }
          communicator.barrier();
          ready = Clock::now();
        },
        elements_);
    double us = std::chrono::duration<double, std::micro>(Clock::now() - ready).count();
    communicator.all_reduce(std::span<double>(&us, 1), tutti::Reduce::max);
    return us;
  }

  /** Whether all ranks hold the same bits, where the mode promises that, and have moved. */
  bool correct() {
    if (!mode_.replicas_agree) opt_->synchronize();
    bool moved = false;
    for (const std::vector<float>& value : values_) {
      std::vector<float> most(value);
      std::vector<float> least(value);
      opt_->communicator().all_reduce(std::span<float>(most), tutti::Reduce::max);
      opt_->communicator().all_reduce(std::span<float>(least), tutti::Reduce::min);
      if (most != least || most != value) return false;
      moved = moved || std::any_of(value.begin(), value.end(), [](float x) { return x != 0.0F; });
    }
    return moved;
  }

  const std::string& name() const { return mode_.name; }
  tutti::StepStatistics statistics() const { return opt_->statistics(); }

 private:
  Mode mode_;
  std::int64_t elements_;
  std::vector<std::vector<float>> values_;
  std::unique_ptr<DistOpt> opt_;
  std::vector<tutti::View> gradients_;
};

struct Sample {
  double us;
  tutti::StepStatistics statistics;
};

bool print(const std::vector<Sample>& sorted, Contestant& contestant, std::int64_t elements,
           tutti::Communicator& communicator) {
  const Sample& median = sorted[sorted.size() / 2];
  const tutti::StepStatistics& phases = median.statistics;
  const bool correct = contestant.correct();
  if (communicator.global_rank() == 0) {
    std::printf(
        "{\"elements\": %lld, \"ranks\": %d, \"mode\": \"%s\", \"step_us\": %.1f, \"encode_us\": "
        "%.1f, \"exchange_us\": %.1f, \"decode_us\": %.1f, \"update_us\": %.1f, \"bytes\": %lld, "
        "\"density\": %.5f, \"checked\": %s}\n",
        static_cast<long long>(elements), communicator.world_size(), contestant.name().c_str(),
        median.us, 1e6 * phases.encode_seconds, 1e6 * phases.exchange_seconds,
        1e6 * phases.decode_seconds, 1e6 * phases.update_seconds,
        static_cast<long long>(phases.bytes_sent), phases.density, correct ? "true" : "false");
    std::fflush(stdout);
  }
  return correct;
}

bool measure(const std::shared_ptr<tutti::Communicator>& communicator, std::int64_t elements,
             int rounds) {
  std::mt19937 random(static_cast<unsigned>(communicator->global_rank()));
  std::normal_distribution<float> normal;
  std::vector<float> gradient(static_cast<std::size_t>(elements) / kParameters);
  for (float& element : gradient) element = normal(random);
  std::vector<Contestant> contestants;
  for (Mode& mode : modes()) contestants.emplace_back(std::move(mode), communicator, elements);
  std::vector<std::vector<Sample>> samples(contestants.size());
  for (int round = -1; round < rounds; ++round) {
    for (std::size_t i = 0; i < contestants.size(); ++i) {
      const double us = contestants[i].step(gradient);
      if (round >= 0) samples[i].push_back({us, contestants[i].statistics()});
    }
  }
  bool correct = true;
  for (std::size_t i = 0; i < contestants.size(); ++i) {
    std::sort(samples[i].begin(), samples[i].end(),
              [](const Sample& a, const Sample& b) { return a.us < b.us; });
    correct = print(samples[i], contestants[i], elements, *communicator) && correct;
  }
  return correct;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    std::string sizes = "431080,4194304,16777216";
    int rounds = 15;
    for (int i = 1; i < argc; i += 2) {
      const std::string option = argv[i];
      const bool known = option == "--elements" || option == "--rounds";
      if (!known || i + 1 == argc) {
        std::fprintf(stderr, "modes_bench: what is '%s'? (--elements N,..., --rounds N)\n",
                     argv[i]);
        return 2;
      }
      if (option == "--elements") {
        sizes = argv[i + 1];
      } else {
        rounds = tutti::bench::number_of(option, argv[i + 1], 1);
      }
    }
    const auto communicator = std::make_shared<tutti::Communicator>();
    bool correct = true;
    for (std::size_t begin = 0; begin < sizes.size();) {
      const std::size_t end = std::min(sizes.find(',', begin), sizes.size());
      const auto elements = tutti::bench::number_of<std::int64_t>(
          "--elements", sizes.substr(begin, end - begin), std::int64_t{kParameters});
      correct = measure(communicator, elements, rounds) && correct;
      begin = end + 1;
    }
    return correct ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "modes_bench: %s\n", error.what());
    return 1;
  }
}
