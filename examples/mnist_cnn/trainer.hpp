// The training on one rank: what a user of tutti writes around DistOpt.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "cnn.hpp"
#include "data.hpp"
#include "network.hpp"
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

/**
 * Runs `action`, which must not communicate, on every rank. If it throws on some of them, throws
 * Refused on all of them, so that nobody waits for a rank that has given up.
 */
void together(tutti::Communicator& communicator, const std::function<void()>& action);

/** One rank's model and data, and what it does with them. All methods are collective. */
class Trainer {
 public:
  /** Loads data and checkpoint, and makes the optimiser. Throws Refused. */
  Trainer(const Options& options, std::shared_ptr<tutti::Communicator> communicator);

  /** All epochs that remain. Throws Refused. */
  void run();

 private:
  tutti::OptimizerState read_checkpoint();
  void load(const tutti::OptimizerState& state);
  std::vector<tutti::OptimizerState> gather_states();
  void step();
  void train_epoch(Report& report, EpochResult& result);
  void evaluate(EpochResult& result);
  void save();

  std::unique_ptr<Network> make_network();
  void make_optimizer();
  /** How many batches that many images are. */
  std::int64_t steps_of(std::int64_t images) const;
  tutti::Communicator& communicator() const { return *communicator_; }
  int rank() const { return communicator_->global_rank(); }
  int ranks() const { return communicator_->world_size(); }

  Options options_;
  tutti::DistMode mode_;
  std::shared_ptr<tutti::Communicator> communicator_;
  Cnn model_;  // on the CPU: initial values, checkpoints
  std::unique_ptr<Network> network_;
  Data data_;
  std::optional<tutti::DistOpt> optimizer_;
  std::int64_t epochs_done_ = 0;
};

}  // namespace mnist
