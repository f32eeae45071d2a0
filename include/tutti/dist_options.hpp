// The options of DistOpt, and the table of its modes.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "tutti/communicator.hpp"
#include "tutti/compressor.hpp"

namespace tutti {

/**
 * What keeps the accuracy of backward_and_sparse_update where little is sent: Deep Gradient
 * Compression (Lin et al., ICLR 2018). All zero: plain error feedback.
 */
struct SparseOptions {
  /**
   * Momentum correction: v = momentum * v + gradient takes the gradient's place, and what was sent
   * is zeroed in v as well. The wrapped optimiser should have no momentum of its own then.
   */
  float momentum = 0.0F;
  /**
   * Before anything is added up, each parameter's gradient is scaled down to a norm of at most
   * clip_norm / sqrt(world_size). 0: no clipping.
   */
  float clip_norm = 0.0F;
  /**
   * The density of top-K falls from epoch to epoch: in epoch e it is at least
   * spars^((e + 1) / (warm_up_epochs + 1)). An epoch is `epoch_steps` sparse steps.
   */
  std::int64_t warm_up_epochs = 0;
  std::int64_t epoch_steps = 0;
};

/** How gradients travel in a step: the method of DistOpt that does it so. */
enum class DistMode : std::uint8_t {
  full,       ///< backward_and_update
  half,       ///< backward_and_update_half
  partial,    ///< backward_and_partial_update
  top_k,      ///< backward_and_sparse_update with topK
  threshold,  ///< backward_and_sparse_update without
  custom,     ///< backward_and_custom_update
};

struct DistOptions {
  /** What DistOpt::operator() does, and with which arguments: those of the method of the mode. */
  DistMode mode = DistMode::full;
  bool clipping = false;      ///< half: whether gradients are limited first
  float clip_value = 100.0F;  ///< half: to [-clip_value, clip_value]
  double spars = 0.05;        ///< top_k: the fraction that is sent; threshold: the least magnitude
  bool corr = true;           ///< top_k, threshold: what is not sent is added to later gradients
  /** Makes the compressor of backward_and_custom_update; see docs/compressors.md for one. */
  MakeCompressor compressor{};
  /**
   * Size of a bucket in elements: gradients are sent once about that many have been gathered. A
   * bucket holds whole gradients; one that alone is larger has a bucket of its own. A step may ask
   * for another size (`threshold`, as SINGA calls it).
   */
  std::int64_t bucket_elements = 2097152;
  /** A parameter that a backward pass does not emit counts as a zero gradient. */
  bool missing_as_zero = false;
  /** In which type backward_and_update_half and the half sums travel: f16 or bf16. */
  DType half = DType::f16;
  SparseOptions sparse{};
  /**
   * Where parameters are on a GPU: the stream on which gradients are made and parameters are read
   * and written. Left out: the GPU's default stream.
   */
  Stream stream{};
  CommOptions comm{};
};

/** A row of the table of modes. */
struct NamedMode {
  std::string_view name;        ///< what programs call it: "fp32"
  DistMode mode;                ///< DistOptions::mode
  std::string_view method;      ///< of DistOpt, the same in C++ and in Python
  std::optional<DType> half{};  ///< DistOptions::half, where the name says it
  /** The options that it reads, by the keywords of Python's DistOpt: `clip_Value` is
   * DistOptions::clip_value, `momentum_correction` is SparseOptions::momentum. */
  std::span<const std::string_view> options{};

  /** Whether `option` is one of `options`. */
  bool takes(std::string_view option) const;
};

/** The modes that need no compressor of the caller's: fp32, fp16, bf16, partialUpdate, sparseTopK
 * and sparseThreshold. */
std::span<const NamedMode> named_modes();
/** The mode of that name. Throws InvalidArgument, which lists the names, if there is none. */
const NamedMode& named_mode(std::string_view name);

}  // namespace tutti
