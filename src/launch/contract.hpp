// The variables by which a rank learns who it is: tutti's, PyTorch's and Paddle's.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "launch/plan.hpp"

namespace tutti::launch {

/** What all ranks of a job are told alike. */
struct Job {
  std::string ticket;    ///< empty: the ranks meet through MPI
  std::string secret{};  ///< of workers and servers that meet at endpoints; empty: none
  int attempt = 0;
  Endpoint master;      ///< where PyTorch's rank 0 listens
  Endpoint gloo;        ///< where Paddle's Gloo asks; port 0: nowhere
  std::string gpus;     ///< CUDA_VISIBLE_DEVICES for those who use GPUs; empty: as it is
  std::string threads;  ///< OMP_NUM_THREADS; empty: as it is
};

/** Gives a rank a variable, in place of what it would be otherwise. */
void set_variable(RankPlan& rank, const Variable& variable);

/** Whether a variable tells a rank who it is, so that nobody else may set it. */
bool is_of_each_rank(std::string_view name);

/** What ranks on other machines are given of our environment. */
std::vector<Variable> carried_variables();

/** Adds to each rank of `plan` the variables that say what the plan holds. */
void add_contract(Plan& plan, const Job& job);

/**
 * Removes from this process' environment what the launcher that has started it says of it alone
 * (mpiexec, srun with PMIx, torchrun, another tutti run): its ranks are others.
 */
void forget_own_launch();

}  // namespace tutti::launch
