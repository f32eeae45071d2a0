// The build has no CUDA.
#include "network.hpp"
#include "tutti/error.hpp"

namespace mnist {

std::unique_ptr<Network> make_gpu_network(Cnn&, std::int64_t, tutti::Device) {
  throw tutti::BackendUnavailable("mnist_dist was built without CUDA");
}

}  // namespace mnist
