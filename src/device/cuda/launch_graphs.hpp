// Kernels that are launched again and again with the same arguments: as one graph.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tutti/device.hpp"

namespace tutti::cuda {

/**
 * Launches work directly where it comes for the first time, and as a graph from then on: one call
 * instead of several. A graph has the arguments of its kernels by value, addresses among them. So
 * it is launched only where all are what they were, and then does what the kernels would: it owns
 * no memory, and whose that is meanwhile does not matter. Where CUDA makes no graphs, the log says
 * so once and everything is launched directly.
 */
class LaunchGraphs {
 public:
  /** All that the work depends on: addresses, counts. */
  using Arguments = std::array<std::uint64_t, 9>;
  using Launches = std::function<void(const Stream& stream)>;

  /** Of kernels that the stream has run before they come to a graph: these are loaded. */
  void launch(const Stream& stream, const Arguments& arguments, const Launches& launches);

 private:
  struct Destroy {
    void operator()(cudaGraphExec_t graph) const noexcept;
  };
  using Graph = std::unique_ptr<CUgraphExec_st, Destroy>;
  struct Work {
    Arguments arguments;
    Graph graph;
  };

  /** Where this work is kept; null if it comes for the first time, and is kept from now on. */
  Work* find(const Arguments& arguments);
  Graph make(const Stream& stream, const Launches& launches);

  std::vector<Work> known_;
  Stream captured_;  // runs nothing: launches on it become nodes
  bool possible_ = true;
};

}  // namespace tutti::cuda
