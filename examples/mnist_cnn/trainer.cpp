// Training, evaluation and checkpoints, in step with the other ranks.
#include "trainer.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <numeric>
#include <optional>
#include <span>

#include "checkpoint.hpp"

namespace mnist {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/**
 * Runs `action`, which must not communicate, on every rank. If it throws on some of them, throws
 * Refused on all of them, so that nobody waits for a rank that has given up.
 */
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

/** Rank 0's bytes, on every rank. */
void broadcast(tutti::Communicator& communicator, std::vector<std::byte>& bytes) {
  auto size = static_cast<std::int64_t>(bytes.size());
  communicator.broadcast(std::span(&size, 1), 0);
  bytes.resize(static_cast<std::size_t>(size));
  communicator.broadcast(tutti::View(bytes.data(), size, tutti::DType::u8), 0);
}

}  // namespace

Trainer::Trainer(const Options& options, tutti::DistOpt& optimizer)
    : options_(options), optimizer_(optimizer), model_(options.seed, options.batch_size) {
  tutti::OptimizerState state;
  if (!options_.resume.empty()) state = read_checkpoint();
  together(communicator(), [&] { data_ = load_data(options_.data_dir, options_.seed); });

  std::vector<tutti::Parameter> parameters;
  for (const NamedParameter& parameter : model_.parameters()) {
    parameters.push_back({parameter.value, parameter.name});
  }
  // Gradients are computed where the collectives read them: nothing is copied.
  std::vector<std::span<float>> gradients;
  for (const tutti::View& view : optimizer_.register_parameters(parameters)) {
    gradients.emplace_back(static_cast<float*>(view.data), static_cast<std::size_t>(view.count));
  }
  model_.set_gradients(gradients);
  if (!options_.resume.empty()) {
    together(communicator(), [&] {
      try {
        optimizer_.load_state(state);
      } catch (const tutti::InvalidArgument& error) {
        throw CheckpointError(options_.resume.string() + ": " + error.what());
      }
    });
  }
}

// Rank 0 alone reads the file: the others may be on machines that do not have it.
tutti::OptimizerState Trainer::read_checkpoint() {
  std::vector<std::byte> bytes;
  together(communicator(), [&] {
    if (first_rank()) bytes = read_file(options_.resume);
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
  return checkpoint.optimizer;
}

void Trainer::save() {
  if (options_.save.empty()) return;
  together(communicator(), [&] {
    if (!first_rank()) return;
    Checkpoint checkpoint{options_.seed, epochs_done_, {}, optimizer_.state()};
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
      training_order(data_.train.count(), optimizer_.global_rank(), optimizer_.world_size(),
                     options_.seed, result.epoch);
  const auto batch_size = static_cast<std::size_t>(options_.batch_size);
  const std::size_t batches = (order.size() + batch_size - 1) / batch_size;

  std::array<double, 3> totals{};  // losses, images told rightly, images
  for (std::size_t i = 0; i < batches; ++i) {
    const std::size_t first = i * batch_size;
    const std::size_t size = std::min(batch_size, order.size() - first);
    gather(data_.train, std::span(order).subspan(first, size), batch_);
    const BatchResult batch = model_.forward(batch_.pixels, batch_.labels);
    optimizer_.backward_and_update([&](const tutti::Emit& emit) { model_.backward(emit); });

    totals[0] += batch.loss_sum / static_cast<double>(size);
    totals[1] += batch.correct;
    totals[2] += static_cast<double>(size);
    report.progress(i + 1, batches, totals[2] * optimizer_.world_size() / seconds_since(start));
  }
  communicator().all_reduce(std::span<double>(totals));
  result.train_loss = totals[0];
  result.train_accuracy = totals[1] / totals[2];
  result.images_per_second = totals[2] / seconds_since(start);
  result.bytes_per_step = optimizer_.bytes_per_step();
}

void Trainer::evaluate(EpochResult& result) {
  const Shard shard =
      evaluation_shard(data_.test.count(), optimizer_.global_rank(), optimizer_.world_size());
  std::array<std::int64_t, 2> totals{};  // images told rightly, images
  std::vector<std::int64_t> indices;
  for (std::int64_t done = 0; done < shard.size; done += options_.batch_size) {
    indices.resize(
        static_cast<std::size_t>(std::min<std::int64_t>(options_.batch_size, shard.size - done)));
    std::iota(indices.begin(), indices.end(), shard.first + done);
    gather(data_.test, indices, batch_);
    totals[0] += model_.forward(batch_.pixels, batch_.labels).correct;
    totals[1] += static_cast<std::int64_t>(indices.size());
  }
  communicator().all_reduce(std::span<std::int64_t>(totals));
  result.eval_count = totals[1];
  result.eval_accuracy = static_cast<double>(totals[0]) / static_cast<double>(totals[1]);
}

void Trainer::run() {
  std::optional<Report> report;
  together(communicator(), [&] {
    if (first_rank() && !options_.save.empty()) check_checkpoint_path(options_.save);
    const RunFacts facts{optimizer_.world_size(), options_.dist_option, "cpu", data_.kind};
    report.emplace(first_rank(), facts, options_.json);
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
    together(communicator(), [&] { report->epoch_ended(result); });
    ++epochs_done_;
    save();
  }
}

}  // namespace mnist
