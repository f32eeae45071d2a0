// The CNN of SINGA's distributed MNIST example, forward and backward.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "conv_block.hpp"
#include "linear.hpp"

namespace mnist {

inline constexpr std::int64_t kImageSize = 28;
inline constexpr std::int64_t kImagePixels = kImageSize * kImageSize;
inline constexpr std::int64_t kClasses = 10;

/** Called by Cnn::backward for each gradient it has made. */
using EmitGradient =
    std::function<void(std::span<float> parameter, std::span<const float> gradient)>;

/** A trainable array of the model, weights or biases of one layer. */
struct NamedParameter {
  std::string name;
  std::span<float> value;
};

/**
 * conv 20@5x5, ReLU, pool 2x2, conv 50@5x5, ReLU, pool 2x2, linear 500, ReLU, linear 10, and
 * softmax cross-entropy averaged over the batch.
 *
 * Inside, images are stored channels last, so the weights of conv2 and linear1 are a permutation
 * of those that a channels-first framework would hold.
 */
class Cnn {
 public:
  /** Initial weights depend on `seed` alone. Batches have at most `max_batch` images. */
  Cnn(std::uint64_t seed, std::int64_t max_batch);

  /** All parameters, first layer first: weight, then bias, of each layer. */
  std::vector<NamedParameter> parameters();

  /** Where backward() writes each gradient: one span per parameter, in the same order. */
  void set_gradients(std::span<const std::span<float>> gradients);

  /** Pixels [batch, 28, 28] with values 0..255, labels [batch] with values 0..9. */
  BatchResult forward(std::span<const std::uint8_t> pixels, std::span<const std::uint8_t> labels);

  /** Gradients of the last forward()'s mean loss, emitted last parameter first. After
   * set_gradients(). */
  void backward(const EmitGradient& emit);

 private:
  using Conv1 = ConvBlock<1, kImageSize, 20>;
  using Conv2 = ConvBlock<20, Conv1::kPooledSize, 50>;
  static constexpr Linear kLinear1{Conv2::kOutElements, 500};
  static constexpr Linear kLinear2{kLinear1.out, kClasses};

  enum Index : std::size_t {
    kConv1Weight,
    kConv1Bias,
    kConv2Weight,
    kConv2Bias,
    kLinear1Weight,
    kLinear1Bias,
    kLinear2Weight,
    kLinear2Bias,
    kParameters
  };

  float* value(Index index) { return values_[index].data(); }
  float* gradient(Index index) { return gradients_[index].data(); }

  std::int64_t batch_ = 0;
  Conv1 conv1_;
  Conv2 conv2_;
  std::vector<std::vector<float>> values_;
  std::vector<std::span<float>> gradients_;

  // Activations of the last batch, and the gradients that flow back through them.
  std::vector<float> images_, pooled1_, pooled2_, hidden_, logits_;
  std::vector<float> d_pooled1_, d_pooled2_, d_hidden_, d_logits_;
  std::vector<std::uint8_t> labels_;
};

}  // namespace mnist
