// The training on one rank: what a user of tutti writes around DistOpt.
#pragma once

#include <cstdint>
#include <stdexcept>

#include "cnn.hpp"
#include "data.hpp"
#include "options.hpp"
#include "report.hpp"
#include "tutti/dist_opt.hpp"

namespace mnist {

/**
 * Some rank could not do its part, so all ranks stop. The message says why on the lowest of the
 * ranks that could not, and is empty on the others: together they print one line.
 */
class Refused : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/** One rank's model and data, and what it does with them. All methods are collective. */
class Trainer {
 public:
  /** Loads data and checkpoint, registers the model with `optimizer`. Throws Refused. */
  Trainer(const Options& options, tutti::DistOpt& optimizer);

  /** All epochs that remain. Throws Refused. */
  void run();

 private:
  tutti::OptimizerState read_checkpoint();
  void train_epoch(Report& report, EpochResult& result);
  void evaluate(EpochResult& result);
  void save();

  tutti::Communicator& communicator() const { return optimizer_.communicator(); }
  bool first_rank() const { return optimizer_.global_rank() == 0; }

  Options options_;
  tutti::DistOpt& optimizer_;
  Cnn model_;
  Data data_;
  std::int64_t epochs_done_ = 0;
  Batch batch_;
};

}  // namespace mnist
