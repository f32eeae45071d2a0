// Steps of DistOpt in all modes, beside a simulation of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "multirank/dist_opt_model.hpp"
#include "rig/trial.hpp"
#include "tutti/communicator.hpp"
#include "tutti/dist_opt.hpp"

namespace tutti::test {

/**
 * A model of a few parameters whose gradients are whole numbers, multiples of the number of ranks,
 * so that the formulas of docs/numerics.md are exact in every mode.
 */
class Training {
 public:
  /** Collective. */
  Training(const Trial& trial, const std::shared_ptr<Communicator>& world);

  /** Called in the middle of a backward pass. */
  std::function<void()> interruption;

  /** One step; throws WrongResult where a parameter is not what it must be. */
  void step(DistMode mode, std::uint64_t number);

 private:
  using Vectors = std::vector<std::vector<float>>;
  /** What one rank has. */
  struct Replica {
    Vectors values;
    Vectors residuals;
  };

  float gradient(std::uint64_t number, int rank, std::size_t parameter, std::int64_t i) const;
  std::vector<Vectors> gradients(std::uint64_t number) const;
  void simulate_averages(const std::vector<Vectors>& gradients, DistMode mode);
  void simulate_partial(const std::vector<Vectors>& gradients);
  float threshold() const { return 4.0F * static_cast<float>(ranks_); }

  int ranks_;
  int rank_;
  std::vector<std::int64_t> sizes_;
  Values values_;
  std::vector<Replica> replicas_;
  std::size_t partition_ = 0;  // the next to be averaged
  Values own_;                 // gradients of this rank
  DistOpt optimizer_;
};

}  // namespace tutti::test
