// What the GPUs that are not there do, as a test wants it.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <memory>
#include <set>

namespace tutti::on_cpu {

/** How many GPUs there are; 1 unless set. The library asks once. */
void set_gpus(int count);

/** The GPUs on which something has made a context since this was called last. */
std::set<int> take_contexts();

/** What `stream`, of the GPU that is current, is given from now on ends after `ended` has come to
 * hold; all else has ended when a call returns. */
void hold_up(cudaStream_t stream, std::shared_ptr<std::atomic<bool>> ended);

/** Asked before anything is made on a GPU: whether there is memory for it, on this thread. */
void set_has_memory(std::function<bool()> has_memory);

/** Whether a kernel was loaded, or none was: who loads some loads all. */
bool may_launch(const void* kernel);
/** How many kernels were loaded. */
std::size_t loaded_kernels();

}  // namespace tutti::on_cpu
