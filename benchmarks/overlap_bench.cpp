// How much of a step's exchange a backward pass of the same length hides.
//
//   mpiexec -n 2 overlap_bench [--elements 16777216] [--layers 64] [--rounds 7] [--json FILE]
//       [--gbps G] [--ranks-per-core 1]
//
// A step of DistOpt (fp32, buckets of its default size) whose backward pass computes nothing, such
// a pass that is as long as that step and sends nothing, and a step with such a pass, in turns:
// once computing on the rank's own core, and once elsewhere, as on a GPU, while the core waits.
// Medians of the slowest rank; exchange_cpu_us is what the exchange needs of its cores.
// hideable_us: the last bucket is left when the backward pass ends, and so is the update of the
// parameters, which later gradients still read: nobody can hide these; nor, on the rank's own core,
// what the exchanges of all ranks that share the core need of that. hidden is the part of it by
// which a step is shorter than both one after the other. Every parameter is
// checked. JSON Lines: computing (own core, elsewhere), hosts, ranks_per_host, bytes, buckets,
// compute_us, exchange_us, exchange_cpu_us (of a rank), update_us (in both), step_us, hideable_us,
// hidden (null where nothing can be), wire_us (of the exchange; null without --gbps), checked.
// benchmarks/cluster_bench.py --bench runs it on hosts that are network namespaces.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "support/numbers.hpp"
#include "tutti/dist_opt.hpp"
#include "tutti/output_file.hpp"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

struct OverlapOptions {
  std::int64_t elements = std::int64_t{1} << 24;
  int layers = 64;
  int rounds = 7;
  std::string json;
  std::optional<double> gbps;
  double ranks_per_core = 1;
};

OverlapOptions parse(int argc, char** argv) {
  OverlapOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw InvalidArgument(name + " has no value");
    const std::string value = argv[i + 1];
    if (name == "--elements") {
      options.elements = number_of<std::int64_t>(name, value, 1);
    } else if (name == "--layers") {
      options.layers = number_of(name, value, 1);
    } else if (name == "--rounds") {
      options.rounds = number_of(name, value, 1);
    } else if (name == "--json") {
      options.json = value;
    } else if (name == "--gbps") {
      options.gbps = positive_of(name, value);
    } else if (name == "--ranks-per-core") {
      options.ranks_per_core = positive_of(name, value);
    } else {
      throw InvalidArgument("unknown option " + name);
    }
  }
  if (options.elements < options.layers) throw InvalidArgument("--elements is below --layers");
  return options;
}

/** What a layer of a backward pass computes before its gradient is there. */
using Compute = std::function<void()>;

/** Arithmetic that the first cache holds. */
class Arithmetic {
 public:
  void run(std::int64_t passes) {
    for (std::int64_t pass = 0; pass < passes; ++pass) {
      for (float& value : values_) value = value * 0.999F + 0.001F;
    }
    if (!(values_.front() > 0.5F)) throw Error("the arithmetic is wrong");  // nor is it left out
  }

 private:
  std::vector<float> values_ = std::vector<float>(4096, 1.0F);
};

/** Microseconds. */
struct Taken {
  double wall;
  double cpu;
};

double cpu_us() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

/** Layers of equal size that a DistOpt trains. */
class Model {
 public:
  Model(std::shared_ptr<Communicator> communicator, const OverlapOptions& options)
      : communicator_(std::move(communicator)),
        values_(static_cast<std::size_t>(options.layers),
                std::vector<float>(static_cast<std::size_t>(options.elements / options.layers))),
        opt_(std::make_shared<SGD>(SgdOptions{.lr = 1.0F}), communicator_) {
    std::vector<Parameter> parameters;
    for (auto& value : values_) parameters.push_back({std::span<float>(value), ""});
    gradients_ = opt_.register_parameters(parameters);
    for (std::size_t layer = 0; layer < values_.size(); ++layer) {
      const View& gradient = gradients_[layer];
      std::fill_n(static_cast<float*>(gradient.data), values_[layer].size(),
                  brought_by(communicator_->global_rank(), layer));
    }
  }

  void step(const Compute& compute) {
    opt_.backward_and_update([&](const Emit& emit) {
      for (std::size_t layer = values_.size(); layer-- > 0;) {
        compute();
        emit(std::span<float>(values_[layer]), gradients_[layer]);
      }
    });
    ++steps_;
  }
  void compute_alone(const Compute& compute) {
    for (std::size_t layer = 0; layer < values_.size(); ++layer) compute();
  }

  /** What `action` takes on the slowest rank, and of its cores. */
  template <class Action>
  Taken time(const Action& action) {
    communicator_->barrier();
    const Clock::time_point start = Clock::now();
    const double cpu = cpu_us();
    action();
    std::array<double, 2> taken{
        std::chrono::duration<double, std::micro>(Clock::now() - start).count(), cpu_us() - cpu};
    communicator_->all_reduce(std::span<double>(taken), Reduce::max);
    return {taken[0], taken[1]};
  }

  /** Of the last step, the optimiser's part on the slowest rank, in microseconds. */
  double update_us() {
    double us = 1e6 * opt_.statistics().update_seconds;
    communicator_->all_reduce(std::span<double>(&us, 1), Reduce::max);
    return us;
  }

  /** In how many collectives a step sends its gradients. */
  std::int64_t buckets() const {
    const auto layers = static_cast<std::int64_t>(values_.size());
    const auto layer = static_cast<std::int64_t>(values_.front().size());
    const std::int64_t layers_each = (DistOptions{}.bucket_elements + layer - 1) / layer;
    return (layers + layers_each - 1) / layers_each;
  }

  /** Whether every parameter is where the steps so far have led, on all ranks. */
  bool correct() {
    std::int32_t right = 1;
    for (std::size_t layer = 0; layer < values_.size(); ++layer) {
      float sum = 0;
      for (int rank = 0; rank < communicator_->world_size(); ++rank) sum += brought_by(rank, layer);
      const float average = sum / static_cast<float>(communicator_->world_size());
      const float expected = -average * static_cast<float>(steps_);
      for (const float value : values_[layer]) {
        if (std::abs(value - expected) > 1e-4F * std::abs(expected)) right = 0;
      }
    }
    communicator_->all_reduce(std::span<std::int32_t>(&right, 1), Reduce::min);
    return right != 0;
  }

 private:
  static float brought_by(int rank, std::size_t layer) {
    return static_cast<float>(rank + 1 + static_cast<int>(layer % 3));
  }

  std::shared_ptr<Communicator> communicator_;
  std::vector<std::vector<float>> values_;
  DistOpt opt_;
  std::vector<View> gradients_;
  std::int64_t steps_ = 0;
};

struct Times {
  std::vector<double> compute;
  std::vector<double> exchange;
  std::vector<double> exchange_cpu;
  std::vector<double> update;
  std::vector<double> both;
};

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

/** A layer's share of what takes as long as an exchange: on this core, or elsewhere. */
Compute as_long_as_an_exchange(Model& model, Arithmetic& arithmetic, int layers, bool elsewhere) {
  constexpr int kTries = 3;  // the first of them meet cold caches and clocks
  double exchange = 0;
  for (int i = 0; i < kTries; ++i) exchange = model.time([&] { model.step([] {}); }).wall;
  if (elsewhere) {
    const std::chrono::duration<double, std::micro> each(exchange / layers);
    return [each] { std::this_thread::sleep_for(each); };
  }
  std::int64_t passes = 1000;  // of a layer
  for (int i = 0; i < kTries; ++i) {
    const double tried = model.time([&] { arithmetic.run(passes * layers); }).wall;
    passes = std::llround(static_cast<double>(passes) * exchange / tried);
  }
  return [&arithmetic, passes] { arithmetic.run(passes); };
}

Times take_turns(Model& model, const Compute& compute, int rounds) {
  Times times;
  for (int round = 0; round < rounds; ++round) {
    const Taken exchange = model.time([&] { model.step([] {}); });
    times.exchange.push_back(exchange.wall);
    times.exchange_cpu.push_back(exchange.cpu);
    times.compute.push_back(model.time([&] { model.compute_alone(compute); }).wall);
    times.both.push_back(model.time([&] { model.step(compute); }).wall);
    times.update.push_back(model.update_us());
  }
  return times;
}

std::string line_of(const OverlapOptions& options, const Communicator& communicator,
                    const Model& model, bool elsewhere, const Times& times) {
  const double compute = median(times.compute);
  const double exchange = median(times.exchange);
  const double both = median(times.both);
  const auto buckets = static_cast<double>(model.buckets());
  const double cpu = median(times.exchange_cpu);
  const double update = median(times.update);
  const double copies = std::max(cpu - update, 0.0);
  const double free = exchange - update - (elsewhere ? 0 : copies * options.ranks_per_core);
  const double hideable = std::clamp(free * (buckets - 1) / buckets, 0.0, compute);
  const int hosts = communicator.world_size() / communicator.local_size();
  const double bytes = 4.0 * static_cast<double>(options.elements);
  const auto text = [](std::optional<double> number) {
    return number ? std::to_string(*number) : std::string("null");
  };
  std::optional<double> wire;
  if (options.gbps) wire = 2.0 * (hosts - 1) / hosts * bytes * 8e-3 / *options.gbps;
  std::optional<double> hidden;
  if (hideable > 0.01 * exchange) hidden = (compute + exchange - both) / hideable;
  std::array<char, 448> line{};
  std::snprintf(
      line.data(), line.size(),
      R"({"computing": "%s", "hosts": %d, "ranks_per_host": %d, "bytes": %.0f, )"
      R"("buckets": %.0f, "compute_us": %.0f, "exchange_us": %.0f, )"
      R"("exchange_cpu_us": %.0f, "update_us": %.0f, "step_us": %.0f, "hideable_us": %.0f, )"
      R"("hidden": %s, "wire_us": %s, "checked": true})"
      "\n",
      elsewhere ? "elsewhere" : "own core", hosts, communicator.local_size(), bytes, buckets,
      compute, exchange, cpu, update, both, hideable, text(hidden).c_str(), text(wire).c_str());
  return line.data();
}

void run(const OverlapOptions& options) {
  const auto communicator = std::make_shared<Communicator>();
  std::string lines;
  for (const bool elsewhere : {false, true}) {
    Model model(communicator, options);
    Arithmetic arithmetic;
    const Compute compute = as_long_as_an_exchange(model, arithmetic, options.layers, elsewhere);
    const Times times = take_turns(model, compute, options.rounds);
    if (!model.correct()) throw Error("a parameter is wrong");
    lines += line_of(options, *communicator, model, elsewhere, times);
  }
  if (communicator->global_rank() != 0) return;
  std::printf("%s", lines.c_str());
  if (options.json.empty()) return;
  OutputFile json(options.json);
  json.write(lines);
  json.commit();
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  try {
    tutti::bench::run(tutti::bench::parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "overlap_bench: %s\n", error.what());
    return 1;
  }
}
