// Prints results for people, and as JSON Lines for programs.
#include "report.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "launch.hpp"

namespace mnist {
namespace {

/** The shortest text that reads back as the same number; JSON has no NaN and no infinity. */
std::string json_number(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> text{};
  const auto [end, error] = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end};
}

/** Seconds that rank 0 spent in each phase of its steps. */
std::string json_phases(const tutti::StepStatistics& totals) {
  return "{\"pack\": " + json_number(totals.pack_seconds) +
         ", \"encode\": " + json_number(totals.encode_seconds) +
         ", \"exchange\": " + json_number(totals.exchange_seconds) +
         ", \"decode\": " + json_number(totals.decode_seconds) +
         ", \"update\": " + json_number(totals.update_seconds) +
         ", \"overlap\": " + json_number(totals.overlap_seconds) + "}";
}

std::string json_numbers(const std::vector<double>& values) {
  std::string text = "[";
  for (const double value : values) text += (text.size() == 1 ? "" : ", ") + json_number(value);
  return text + "]";
}

/** The pipe from which `tutti run` reads what the rank says of its progress; -1 if there is none.
 */
int launchers_progress_fd() {
  const char* const text = std::getenv("TUTTI_PROGRESS_FD");
  if (text == nullptr) return -1;
  const int number = std::atoi(text);
  struct stat status {};
  return ::fstat(number, &status) == 0 && S_ISFIFO(status.st_mode) ? number : -1;
}

}  // namespace

Report::Report(bool speaks, const RunFacts& facts, const std::filesystem::path& json)
    : speaks_(speaks),
      shows_progress_(speaks && stdout_is_terminal()),
      progress_fd_(speaks ? launchers_progress_fd() : -1),
      facts_(facts) {
  if (!speaks || json.empty()) return;
  json_.emplace(json);
  json_->commit();  // so that it can be read as it grows
}

void Report::line(const std::string& text) {
  if (!speaks_) return;
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

void Report::epoch_started(std::int64_t epoch) {
  line("Starting Epoch " + std::to_string(epoch) + ":");
}

void Report::progress(std::size_t batches_done, std::size_t batches, double images_per_second) {
  if (!shows_progress_ && progress_fd_ < 0) return;
  const Clock::time_point now = Clock::now();
  if (now - last_drawn_ < std::chrono::milliseconds(200)) return;
  last_drawn_ = now;
  if (progress_fd_ >= 0) {
    std::array<char, 80> text{};
    const int length = std::snprintf(text.data(), text.size(), "%zu/%zu, %.0f images/s\n",
                                     batches_done, batches, images_per_second);
    // It is lost if the launcher has no time for it now.
    [[maybe_unused]] const auto written =
        ::write(progress_fd_, text.data(), static_cast<std::size_t>(length));
  }
  if (!shows_progress_) return;
  constexpr int kWidth = 40;
  constexpr const char* kFull = "========================================";
  const int filled = static_cast<int>(kWidth * batches_done / batches);
  std::printf("\r[%.*s%*s] %zu/%zu  %.0f images/s ", filled, kFull, kWidth - filled, "",
              batches_done, batches, images_per_second);
  std::fflush(stdout);
  bar_is_drawn_ = true;
}

void Report::clear_progress() {
  if (bar_is_drawn_) std::printf("\r\033[K");
  bar_is_drawn_ = false;
}

void Report::training_ended(const EpochResult& result) {
  if (!speaks_) return;
  clear_progress();
  std::printf("Training loss = %f, training accuracy = %f\n", result.train_loss,
              result.train_accuracy);
  std::fflush(stdout);
}

void Report::epoch_ended(const EpochResult& result) {
  if (!speaks_) return;
  std::printf("Evaluation accuracy = %f, Elapsed Time = %fs\n", result.eval_accuracy,
              result.seconds);
  std::fflush(stdout);
  if (json_) write_json(result);
}

void Report::write_json(const EpochResult& result) {
  json_->write(
      "{\"epoch\": " + std::to_string(result.epoch) +
      ", \"train_loss\": " + json_number(result.train_loss) +
      ", \"train_accuracy\": " + json_number(result.train_accuracy) + ", \"eval_accuracy\": " +
      json_number(result.eval_accuracy) + ", \"eval_count\": " + std::to_string(result.eval_count) +
      ", \"seconds\": " + json_number(result.seconds) +
      ", \"images_per_second\": " + json_number(result.images_per_second) +
      ", \"world_size\": " + std::to_string(facts_.world_size) + ", \"dist_option\": \"" +
      facts_.dist_option + "\", \"device\": \"" + facts_.device + "\", \"data\": \"" + facts_.data +
      "\", \"bytes_per_step\": " + std::to_string(result.totals.bytes_sent / result.steps) +
      ", \"bytes_between_per_step\": " +
      std::to_string(result.totals.bytes_between / result.steps) +
      ", \"density\": " + json_number(result.totals.density / static_cast<double>(result.steps)) +
      ", \"non_finite\": " + std::to_string(result.totals.non_finite) + ", \"seconds_by_phase\": " +
      json_phases(result.totals) + ", \"lateness\": " + json_numbers(result.lateness) + "}\n");
}

}  // namespace mnist
