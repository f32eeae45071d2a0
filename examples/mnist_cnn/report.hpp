// What the program prints and writes: SINGA's lines, a progress bar, JSON Lines.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tutti/output_file.hpp"
#include "tutti/step_statistics.hpp"

namespace mnist {

/** The results of one epoch over all ranks. */
struct EpochResult {
  std::int64_t epoch = 0;
  double train_loss = 0.0;  ///< sum over all ranks and batches of the batch's mean loss
  double train_accuracy = 0.0;
  double eval_accuracy = 0.0;
  std::int64_t eval_count = 0;
  double seconds = 0.0;            ///< training and evaluation
  double images_per_second = 0.0;  ///< training only
  std::int64_t steps = 0;
  tutti::StepStatistics totals{};  ///< of rank 0, over all steps
  std::vector<double> lateness{};  ///< seconds that the others have waited for each rank so far
};

/** What is the same for all epochs of a run. */
struct RunFacts {
  int world_size = 1;
  std::string dist_option;
  std::string device;
  std::string data;
};

/** The voice of rank 0; on the other ranks it is silent. */
class Report {
 public:
  /** A `json` file, unless empty, starts anew. Throws as tutti::OutputFile does. */
  Report(bool speaks, const RunFacts& facts, const std::filesystem::path& json);

  void line(const std::string& text);
  void epoch_started(std::int64_t epoch);
  /** Call after each batch; a few times a second redraws the bar, if there is a terminal, or tells
   * the launcher, which draws its own line (TUTTI_PROGRESS_FD). */
  void progress(std::size_t batches_done, std::size_t batches, double images_per_second);
  void training_ended(const EpochResult& result);
  /** Throws tutti::SystemError if the JSON line cannot be written. */
  void epoch_ended(const EpochResult& result);

 private:
  using Clock = std::chrono::steady_clock;

  void clear_progress();
  void write_json(const EpochResult& result);

  bool speaks_;
  bool shows_progress_;
  int progress_fd_;  // of the launcher; -1: none
  bool bar_is_drawn_ = false;
  Clock::time_point last_drawn_;
  RunFacts facts_;
  std::optional<tutti::OutputFile> json_;
};

}  // namespace mnist
