// One block of the CNN: 5x5 convolution, ReLU, 2x2 max-pooling.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mnist {

/**
 * 5x5 convolution without padding, then ReLU, then 2x2 max-pooling with stride 2.
 *
 * Shapes, row-major float32, channels last: images [batch, kSize, kSize, kIn], weight
 * [kOut, 5, 5, kIn], bias [kOut], output [batch, kPooledSize, kPooledSize, kOut].
 *
 * Forward, im2col turns the convolution into a matrix product, a few images at a time so that the
 * matrices stay in the second-level cache. Backward, only the winner of each pooling window
 * carries a gradient, and only if ReLU let it pass: about an eighth of the convolution's outputs.
 * So the backward pass walks over these winners, where matrix products would multiply zeros.
 */
template <std::int64_t kIn, std::int64_t kSize, std::int64_t kOut>
class ConvBlock {
 public:
  static constexpr std::int64_t kKernel = 5;
  static constexpr std::int64_t kConvSize = kSize - kKernel + 1;
  static constexpr std::int64_t kPooledSize = kConvSize / 2;
  static constexpr std::int64_t kInElements = kSize * kSize * kIn;
  static constexpr std::int64_t kOutElements = kPooledSize * kPooledSize * kOut;
  static constexpr std::int64_t kWeights = kOut * kKernel * kKernel * kIn;
  /** This many floats behind the last image must be readable; their values do not matter. */
  static constexpr std::int64_t kSlack = 4;

  /** Makes room for batches of up to `max_batch` images. */
  explicit ConvBlock(std::int64_t max_batch);

  /** Writes `output` and remembers which elements won. */
  void forward(const float* images, std::int64_t batch, const float* weight, const float* bias,
               float* output);

  /**
   * Writes the gradients of weight and bias. The arguments without d_ are those of the last
   * forward(); d_output is the gradient of its output.
   */
  void backward_parameters(const float* images, std::int64_t batch, const float* output,
                           const float* d_output, float* d_weight, float* d_bias);

  /** Then, where it is needed, writes the gradient of the images. */
  void backward_images(std::int64_t batch, const float* weight, float* d_images) const
      requires(kIn % 4 == 0);

 private:
  /** A gradient that passes back, and where in the image the 5x5 patch starts that it goes to. */
  struct Winner {
    float gradient;
    std::int32_t patch;
  };

  static constexpr std::int64_t kPixels = kConvSize * kConvSize;
  static constexpr std::int64_t kWindows = kPooledSize * kPooledSize;
  /** A row of a patch is contiguous in the image: five pixels with all their channels. */
  static constexpr std::int64_t kRow = kKernel * kIn;
  static constexpr std::int64_t kPatch = kKernel * kRow;
  static constexpr std::int64_t kRowVectors = (kRow + 3) / 4;
  static constexpr std::int64_t kPaddedRow = kRowVectors * 4;
  /** Images in one matrix product: enough to amortise the packing of the weights. */
  static constexpr std::int64_t kGroup = 4;

  void unfold(const float* image, float* patches) const;
  void pool(const float* conv, const float* bias, float* output, std::int32_t* winners) const;
  void list_winners(std::int64_t index, const float* output, const float* d_output);
  void add_parameter_gradients(std::int64_t index, const float* image, float* d_bias);

  std::vector<float> patches_;          // im2col: [kGroup * kPixels, kPatch]
  std::vector<float> conv_;             // the convolution: [kGroup * kPixels, kOut]
  std::vector<std::int32_t> won_;       // the patch of each window's winner: as output
  std::vector<Winner> winners_;         // those that pass a gradient: [batch, kOut, kWindows]
  std::vector<int> counts_;             // how many of them: [batch, kOut]
  std::vector<float> padded_gradient_;  // of the weights: [kOut, 5, kPaddedRow]
};

}  // namespace mnist
