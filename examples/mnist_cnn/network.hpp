// The CNN on the device where it is trained.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cnn.hpp"
#include "data.hpp"
#include "tutti/dist_opt.hpp"

namespace mnist {

/** What some batches gave. */
struct Totals {
  double mean_losses = 0.0;  ///< the sum over the batches of the mean loss of each
  std::int64_t correct = 0;  ///< images told rightly
};

/** A Cnn that may live elsewhere: `host`, which the constructors take, holds its values on the CPU.
 */
class Network {
 public:
  virtual ~Network() = default;

  /** On which the network works: of a GPU, or else inline. */
  virtual tutti::Stream stream() const = 0;
  /** As Cnn's, in memory of the device. */
  virtual std::vector<tutti::Parameter> parameters() = 0;
  virtual void set_gradients(std::span<const tutti::View> gradients) = 0;
  /**
   * Cnn::forward() on the images with these indices; what it gives is added to the totals. On a GPU
   * the work is launched, and the images stay in its memory: they must not change.
   */
  virtual void forward(const Images& images, std::span<const std::int64_t> indices) = 0;
  virtual void backward(const tutti::Emit& emit) = 0;
  /** What was added up since the last call. Blocks. */
  virtual Totals take_totals() = 0;
  /** Copies the values to `host`. Blocks. */
  virtual void store() = 0;
  /** Copies the values from `host`. Blocks. */
  virtual void load() = 0;
};

/** `host` itself. */
std::unique_ptr<Network> make_cpu_network(Cnn& host);
/**
 * Matrix products by cuBLAS (full float32), which is opened now: TUTTI_CUBLAS_LIB, or else
 * libcublas.so.13 or .12. Throws tutti::BackendUnavailable where the build or the machine lacks
 * something.
 */
std::unique_ptr<Network> make_gpu_network(Cnn& host, std::int64_t max_batch, tutti::Device device);

}  // namespace mnist
