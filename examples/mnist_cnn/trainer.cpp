// Training, evaluation and checkpoints, in step with the other ranks.
#include "trainer.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>

#include "checkpoint.hpp"
#include "tutti/output_file.hpp"

namespace mnist {
namespace {

using Clock = std::chrono::steady_clock;

/** Partial updates average the parameters in partitions of about this many elements. */
constexpr std::int64_t kPartitionElements = 100'000;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/** Rank 0's bytes, on every rank. */
void broadcast(tutti::Communicator& communicator, std::vector<std::byte>& bytes) {
  auto size = static_cast<std::int64_t>(bytes.size());
  communicator.broadcast(std::span(&size, 1), 0);
  bytes.resize(static_cast<std::size_t>(size));
  communicator.broadcast(tutti::View(bytes.data(), size, tutti::DType::u8), 0);
}

}  // namespace

void together(tutti::Communicator& communicator, const std::function<void()>& action) {
  std::string error;
  std::int64_t lowest_failed = communicator.world_size();
  try {
    action();
  } catch (const std::exception& exception) {
    error = exception.what();
    lowest_failed = communicator.global_rank();
  }
  communicator.all_reduce(std::span(&lowest_failed, 1), tutti::Reduce::min);
  if (lowest_failed == communicator.world_size()) return;
  throw Refused(lowest_failed == communicator.global_rank() ? error : "");
}

Trainer::Trainer(const Options& options, std::shared_ptr<tutti::Communicator> communicator)
    : options_(options),
      mode_(tutti::named_mode(options.dist_option).mode),
      communicator_(std::move(communicator)),
      model_(options.seed, options.batch_size) {
  tutti::OptimizerState state;
  if (!options_.resume.empty()) state = read_checkpoint();
  together(*communicator_, [&] { data_ = load_data(options_.data_dir, options_.seed); });
  network_ = make_network();
  make_optimizer();
  // Gradients are computed where the collectives read them: nothing is copied.
  network_->set_gradients(optimizer_->register_parameters(network_->parameters()));
  if (!options_.resume.empty()) load(state);
}

/** On GPUs if all ranks have one, with the libraries that it takes, and it is wanted. */
std::unique_ptr<Network> Trainer::make_network() {
  tutti::Device device;
  together(communicator(), [&] {
    if (options_.device != "cpu") device = communicator().device();
    if (options_.device == "cuda" && device.kind == tutti::DeviceKind::cpu) {
      throw std::runtime_error("--device cuda: there is no GPU that this rank can use");
    }
  });
  std::int32_t has_gpu = device.kind == tutti::DeviceKind::cuda ? 1 : 0;
  communicator().all_reduce(std::span(&has_gpu, 1), tutti::Reduce::min);
  if (has_gpu == 0) return make_cpu_network(model_);

  std::unique_ptr<Network> network;
  std::string missing;
  const auto attempt = [&](const std::function<void()>& action) {
    try {
      action();
    } catch (const tutti::BackendUnavailable& error) {
      missing = error.what();
    }
  };
  together(communicator(), [&] {
    attempt([&] { network = make_gpu_network(model_, options_.batch_size, device); });
  });
  std::int64_t lowest = missing.empty() ? ranks() : rank();  // of those that miss something
  communicator().all_reduce(std::span(&lowest, 1), tutti::Reduce::min);
  if (lowest == ranks()) {  // the first collective on GPUs, which all ranks fail alike
    attempt([&] { communicator().barrier(network->stream()).wait(); });
    if (missing.empty()) return network;
    lowest = 0;
  }
  const bool speaks = rank() == lowest;
  if (options_.device == "cuda") throw Refused(speaks ? "--device cuda: " + missing : "");
  if (speaks) std::fprintf(stderr, "mnist_dist: training on the CPU: %s\n", missing.c_str());
  return make_cpu_network(model_);
}

void Trainer::make_optimizer() {
  tutti::SgdOptions sgd{
      .lr = options_.lr, .momentum = options_.momentum, .weight_decay = options_.weight_decay};
  tutti::DistOptions options;
  options.stream = network_->stream();
  options.mode = mode_;
  options.half = tutti::named_mode(options_.dist_option).half.value_or(options.half);
  options.spars = options_.spars;
  options.sparse.clip_norm = options_.clip_norm;
  if (options_.momentum_correction) std::swap(options.sparse.momentum, sgd.momentum);
  options.sparse.warm_up_epochs = options_.warm_up_epochs;
  options.sparse.epoch_steps = steps_of(training_shard(data_.train.count(), rank(), ranks()).size);
  together(communicator(),
           [&] { optimizer_.emplace(std::make_shared<tutti::SGD>(sgd), communicator_, options); });
}

std::int64_t Trainer::steps_of(std::int64_t images) const {
  return (images + options_.batch_size - 1) / options_.batch_size;
}

void Trainer::step() {
  std::optional<std::int64_t> threshold;
  if (mode_ == tutti::DistMode::partial) threshold = kPartitionElements;
  (*optimizer_)([this](const tutti::Emit& emit) { network_->backward(emit); }, threshold);
}

void Trainer::load(const tutti::OptimizerState& state) {
  together(communicator(), [&] {
    try {
      optimizer_->load_state(state);
    } catch (const tutti::InvalidArgument& error) {
      throw CheckpointError(options_.resume.string() + ": " + error.what());
    }
  });
}

// Rank 0 alone reads the file: the others may be on machines that do not have it.
tutti::OptimizerState Trainer::read_checkpoint() {
  std::vector<std::byte> bytes;
  together(communicator(), [&] {
    if (rank() == 0) bytes = read_file(options_.resume);
  });
  broadcast(communicator(), bytes);

  Checkpoint checkpoint;
  together(communicator(),
           [&] { checkpoint = parse_checkpoint(bytes, options_.resume, model_.parameters()); });
  const std::vector<NamedParameter> parameters = model_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::copy(checkpoint.parameters[i].begin(), checkpoint.parameters[i].end(),
              parameters[i].value.begin());
  }
  options_.seed = checkpoint.seed;
  epochs_done_ = checkpoint.epochs_done;
  const std::size_t states = checkpoint.optimizers.size();
  together(communicator(), [&] {
    if (states == 1 || states == static_cast<std::size_t>(ranks())) return;
    throw CheckpointError(options_.resume.string() + ": of " + std::to_string(states) +
                          " ranks, each with a state of its own, and this is a run of " +
                          std::to_string(ranks()));
  });
  return checkpoint.optimizers[states == 1 ? 0 : static_cast<std::size_t>(rank())];
}

/** The states of all ranks, or one if they are alike. */
std::vector<tutti::OptimizerState> Trainer::gather_states() {
  const tutti::OptimizerState own = optimizer_->state();
  if (!own.numbers.contains("dist.rank")) return {own};
  const std::vector<std::byte> packed = pack_state(own);
  const auto size = static_cast<std::int64_t>(packed.size());
  std::vector<std::int64_t> sizes(static_cast<std::size_t>(ranks()));
  communicator().all_gather(std::span(&size, 1), std::span(sizes));
  std::vector<std::byte> all(static_cast<std::size_t>(std::reduce(sizes.begin(), sizes.end())));
  communicator().all_gather_v(
      tutti::ConstView(packed.data(), size, tutti::DType::u8),
      tutti::View(all.data(), static_cast<std::int64_t>(all.size()), tutti::DType::u8), sizes);
  std::vector<tutti::OptimizerState> states;
  std::span<const std::byte> rest = all;
  for (const std::int64_t length : sizes) {
    states.push_back(unpack_state(rest.first(static_cast<std::size_t>(length))));
    rest = rest.subspan(static_cast<std::size_t>(length));
  }
  return states;
}

void Trainer::save() {
  if (options_.save.empty()) return;
  Checkpoint checkpoint{options_.seed, epochs_done_, {}, gather_states()};
  network_->store();
  together(communicator(), [&] {
    if (rank() != 0) return;
    const std::vector<NamedParameter> parameters = model_.parameters();
    for (const NamedParameter& parameter : parameters) {
      checkpoint.parameters.emplace_back(parameter.value.begin(), parameter.value.end());
    }
    save_checkpoint(options_.save, checkpoint, parameters);
  });
}

void Trainer::train_epoch(Report& report, EpochResult& result) {
  const Clock::time_point start = Clock::now();
  const std::vector<std::int64_t> order =
      training_order(data_.train.count(), rank(), ranks(), options_.seed, result.epoch);
  const auto batch_size = static_cast<std::size_t>(options_.batch_size);
  const auto batches = static_cast<std::size_t>(steps_of(static_cast<std::int64_t>(order.size())));

  double images = 0.0;
  for (std::size_t i = 0; i < batches; ++i) {
    const std::size_t first = i * batch_size;
    const std::size_t size = std::min(batch_size, order.size() - first);
    network_->forward(data_.train, std::span(order).subspan(first, size));
    step();
    result.totals += optimizer_->statistics();

    images += static_cast<double>(size);
    report.progress(i + 1, batches, images * ranks() / seconds_since(start));
  }
  const Totals own = network_->take_totals();
  std::array<double, 3> totals{own.mean_losses, static_cast<double>(own.correct), images};
  communicator().all_reduce(std::span<double>(totals));
  result.train_loss = totals[0];
  result.train_accuracy = totals[1] / totals[2];
  result.images_per_second = totals[2] / seconds_since(start);
  result.steps = static_cast<std::int64_t>(batches);
  // Replicas that were updated locally differ: evaluate and save their average.
  if (mode_ == tutti::DistMode::partial) optimizer_->synchronize();
}

void Trainer::evaluate(EpochResult& result) {
  const Shard shard = evaluation_shard(data_.test.count(), rank(), ranks());
  std::int64_t images = 0;
  std::vector<std::int64_t> indices;
  for (std::int64_t done = 0; done < shard.size; done += options_.batch_size) {
    indices.resize(
        static_cast<std::size_t>(std::min<std::int64_t>(options_.batch_size, shard.size - done)));
    std::iota(indices.begin(), indices.end(), shard.first + done);
    network_->forward(data_.test, indices);
    images += static_cast<std::int64_t>(indices.size());
  }
  std::array<std::int64_t, 2> totals{network_->take_totals().correct, images};
  communicator().all_reduce(std::span<std::int64_t>(totals));
  result.eval_count = totals[1];
  result.eval_accuracy = static_cast<double>(totals[0]) / static_cast<double>(totals[1]);
}

void Trainer::run() {
  std::optional<Report> report;
  together(communicator(), [&] {
    // Refused now rather than after an epoch.
    if (rank() == 0 && !options_.save.empty()) tutti::OutputFile{options_.save};
    const bool on_gpu = network_->stream().device().kind == tutti::DeviceKind::cuda;
    const RunFacts facts{ranks(), options_.dist_option, on_gpu ? "cuda" : "cpu", data_.kind};
    report.emplace(rank() == 0, facts, options_.json);
  });
  if (data_.kind == "generated") {
    report->line("Training on generated digits, not on MNIST: " + data_.origin);
  }
  if (!options_.resume.empty()) {
    report->line("Resuming " + options_.resume.string() + " after " + std::to_string(epochs_done_) +
                 " epochs");
  }

  while (epochs_done_ < options_.epochs) {
    const Clock::time_point start = Clock::now();
    EpochResult result{.epoch = epochs_done_};
    report->epoch_started(result.epoch);
    train_epoch(*report, result);
    report->training_ended(result);
    evaluate(result);
    result.seconds = seconds_since(start);
    result.lateness = communicator().lateness();
    together(communicator(), [&] { report->epoch_ended(result); });
    ++epochs_done_;
    save();
  }
}

}  // namespace mnist
