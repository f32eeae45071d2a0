// CUDA's graphs: what is launched on a stream while it is captured, to be run later.
#include <cuda_runtime_api.h>

#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "gpu/on_cpu/grid.hpp"

/** The launches, in their order. CUDA declares the types, and nobody but us looks into them. */
struct CUgraph_st {
  std::vector<std::function<cudaError_t()>> launches;
};
struct CUgraphExec_st : CUgraph_st {};

namespace tutti::on_cpu {
namespace {

/** The streams that are captured; of ranks that are threads there may be several. */
struct Captured {
  std::mutex mutex;
  std::map<cudaStream_t, cudaGraph_t> graphs;
};

Captured& captured() {
  static Captured all;
  return all;
}

}  // namespace

cudaError_t launch(cudaStream_t stream, const std::function<cudaError_t()>& grid) {
  {
    const std::lock_guard lock(captured().mutex);
    const auto found = captured().graphs.find(stream);
    if (found != captured().graphs.end()) {
      found->second->launches.push_back(grid);
      return cudaSuccess;
    }
  }
  return grid();
}

}  // namespace tutti::on_cpu

using tutti::on_cpu::captured;

// The names are CUDA's.
// NOLINTBEGIN(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)
extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  const std::lock_guard lock(captured().mutex);
  if (captured().graphs.contains(stream)) return cudaErrorIllegalState;
  captured().graphs[stream] = new CUgraph_st;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(captured().mutex);
  const auto found = captured().graphs.find(stream);
  if (found == captured().graphs.end()) return cudaErrorIllegalState;
  *graph = found->second;
  captured().graphs.erase(found);
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  if (tutti::on_cpu::requests().graphs_refused) return cudaErrorNotSupported;
  *made = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t /*stream*/) {
  {
    const std::lock_guard lock(captured().mutex);
    ++tutti::on_cpu::requests().graphs;
  }
  for (const auto& launch : graph->launches) {
    if (const cudaError_t result = launch(); result != cudaSuccess) return result;
  }
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
}
// NOLINTEND(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)
