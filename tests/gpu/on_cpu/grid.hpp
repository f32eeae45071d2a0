// The blocks of a launch, one after the other; a block's threads take turns on the caller's thread.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>

namespace tutti::on_cpu {

// Of the thread that has its turn.
// NOLINTBEGIN(readability-identifier-naming): the names are CUDA's
extern uint3 threadIdx;
extern uint3 blockIdx;
extern dim3 gridDim;
// NOLINTEND(readability-identifier-naming)

/**
 * Calls `thread` for each thread of each block. A thread runs until it ends or waits for others.
 * Whether threads take their turns upwards or downwards is drawn for every round, and so is the
 * order of the blocks: what has no barrier meets both. The draws are the same in every process.
 *
 * Returns cudaErrorInvalidConfiguration for sizes that no GPU takes, cudaErrorLaunchFailure if
 * threads wait for others that have ended or wait for something else, and cudaErrorLaunchTimeout if
 * a block looks again and again for what never comes.
 */
cudaError_t run_grid(unsigned blocks, unsigned threads, const std::function<void()>& thread);

/** What a GPU would have been asked for since the program began. */
struct Requests {
  int launches = 0;  ///< of kernels, those of graphs included, and of what sets memory
  int graphs = 0;    ///< that were launched
  int allocations = 0;
  bool graphs_refused = false;
  int queries = 0;  ///< whether an event has come, by who waits for it
};
Requests& requests();

/** Called in front of every launch, until it is replaced; may be empty. */
void set_launch_hook(std::function<void()> hook);
/** Counts a launch, and calls the hook. */
void note_launch();

/** Runs a launch; or keeps it, if the stream is being captured. */
cudaError_t launch(cudaStream_t stream, const std::function<cudaError_t()>& grid);

/** The barrier of a block: all of its threads wait here for each other. */
void wait_for_block();

/** What the threads of a warp have brought, and of which it is not zero. */
struct Exchange {
  std::array<std::uint32_t, 32> brought;
  std::uint32_t ballot;
};

/** Waits until all threads of this warp are here; `mask` must name all. The result is good until
 * this thread's next exchange but one. */
const Exchange& exchange(unsigned mask, std::uint32_t own);

}  // namespace tutti::on_cpu
