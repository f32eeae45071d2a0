// Kernels that are launched again and again with the same arguments: as one graph.
#include "device/cuda/launch_graphs.hpp"

#include <algorithm>
#include <string>

#include "base/log.hpp"
#include "device/cuda/check.hpp"
#include "tutti/error.hpp"

namespace tutti::cuda {
namespace {

constexpr std::size_t kMostKnown = 64;  // as many buckets as a step may have, and more

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const noexcept {
    check_quietly(cudaGraphDestroy(graph), "cudaGraphDestroy");
  }
};
using OwnedGraph = std::unique_ptr<CUgraph_st, DestroyGraph>;

/** While it lives, what is launched on a stream becomes a graph. */
class Capture {
 public:
  explicit Capture(const Stream& stream) : stream_(static_cast<cudaStream_t>(stream.native())) {
    // Relaxed: other threads, and what CUDA itself does for a launch, go on as ever.
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  ~Capture() {
    if (capturing_) finish(check_quietly);
  }

  OwnedGraph end() { return finish(check); }

 private:
  OwnedGraph finish(void (*checked)(cudaError_t, const char*)) {
    capturing_ = false;
    cudaGraph_t graph = nullptr;
    checked(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture");
    return OwnedGraph(graph);
  }

  cudaStream_t stream_;
  bool capturing_ = true;
};

}  // namespace

void LaunchGraphs::Destroy::operator()(cudaGraphExec_t graph) const noexcept {
  // One that runs is freed when it has ended.
  check_quietly(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
}

LaunchGraphs::Work* LaunchGraphs::find(const Arguments& arguments) {
  const auto found = std::find_if(known_.begin(), known_.end(),
                                  [&](const Work& work) { return work.arguments == arguments; });
  if (found != known_.end()) return &*found;
  if (known_.size() == kMostKnown) known_.clear();
  known_.push_back({arguments, nullptr});
  return nullptr;
}

LaunchGraphs::Graph LaunchGraphs::make(const Stream& stream, const Launches& launches) {
  if (captured_.is_inline()) captured_ = Stream::on(stream.device());
  Capture capture(captured_);
  launches(captured_);
  const OwnedGraph graph = capture.end();
  cudaGraphExec_t made = nullptr;
  check(cudaGraphInstantiate(&made, graph.get(), 0), "cudaGraphInstantiate");
  return Graph(made);
}

void LaunchGraphs::launch(const Stream& stream, const Arguments& arguments,
                          const Launches& launches) {
  Work* const work = possible_ ? find(arguments) : nullptr;
  if (work != nullptr && !work->graph) {
    try {
      work->graph = make(stream, launches);
    } catch (const Error& error) {
      log(LogLevel::info, std::string("kernels are launched one by one: ") + error.what());
      possible_ = false;
    }
  }
  if (work == nullptr || !work->graph) return launches(stream);
  check(cudaGraphLaunch(work->graph.get(), static_cast<cudaStream_t>(stream.native())),
        "cudaGraphLaunch");
}

}  // namespace tutti::cuda
