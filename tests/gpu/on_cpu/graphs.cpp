// CUDA's graphs: what is launched on a stream while it is captured, to be run later.
#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "gpu/on_cpu/grid.hpp"

/** The launches, in their order. CUDA declares the types, and nobody but us looks into them. */
struct CUgraph_st {
  std::vector<std::function<cudaError_t()>> launches;
};
struct CUgraphExec_st : CUgraph_st {};

namespace tutti::on_cpu {
namespace {

struct Captured {
  cudaStream_t stream = nullptr;
  cudaGraph_t graph = nullptr;
};

Captured& captured() {
  static Captured the_only;
  return the_only;
}

}  // namespace

cudaError_t launch(cudaStream_t stream, const std::function<cudaError_t()>& grid) {
  if (captured().graph == nullptr || captured().stream != stream) return grid();
  captured().graph->launches.push_back(grid);
  return cudaSuccess;
}

}  // namespace tutti::on_cpu

using tutti::on_cpu::captured;

// The names are CUDA's.
// NOLINTBEGIN(readability-identifier-naming, readability-inconsistent-declaration-parameter-name)
extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode /*mode*/) {
  if (captured().graph != nullptr) return cudaErrorIllegalState;
  captured() = {stream, new CUgraph_st};
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (captured().stream != stream) return cudaErrorIllegalState;
  *graph = captured().graph;
  captured() = {};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph,
                                 unsigned long long /*flags*/) {
  if (tutti::on_cpu::requests().graphs_refused) return cudaErrorNotSupported;
  *made = new CUgraphExec_st{*graph};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t /*stream*/) {
  ++tutti::on_cpu::requests().graphs;
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
