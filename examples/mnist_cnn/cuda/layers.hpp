// The layers of the CNN on a GPU, but for their matrix products. Every function launches its work
// on `stream`, whose device is current; shapes are those of conv_block.hpp and linear.hpp.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace mnist::cuda {

/** Throws tutti::Error unless `code` is cudaSuccess. */
void check(cudaError_t code, const char* call);

/** A data set in memory of the GPU. */
struct DeviceImages {
  const std::uint8_t* pixels;  ///< [count, size]
  const std::uint8_t* labels;  ///< [count]
  std::int64_t size;           ///< pixels of an image
};
/** The images with these indices: values = (pixels - mean) * inverse_deviation, and labels. */
void take_batch(const DeviceImages& images, const std::int64_t* indices, std::int64_t batch,
                float mean, float inverse_deviation, float* values, std::uint8_t* labels,
                cudaStream_t stream);

/** Images of a convolution, channels last, and the patches of 5x5 pixels that it multiplies. */
struct ConvShape {
  std::int64_t batch;
  std::int64_t size;  ///< of an image's side
  std::int64_t in;    ///< channels
  std::int64_t out;

  std::int64_t conv_size() const { return size - 4; }
  std::int64_t pooled_size() const { return conv_size() / 2; }
  std::int64_t pixels() const { return batch * conv_size() * conv_size(); }
  std::int64_t patch() const { return 25 * in; }
  std::int64_t outputs() const { return batch * pooled_size() * pooled_size() * out; }
};

/** im2col: patches [pixels, 25 * in]. */
void unfold(const ConvShape& shape, const float* images, float* patches, cudaStream_t stream);
/** The sums of what unfold() took from each element: the gradient of the images. */
void fold(const ConvShape& shape, const float* patches, float* images, cudaStream_t stream);
/** output = ReLU(max of 2x2 + bias); won: which of the four it was. */
void pool(const ConvShape& shape, const float* conv, const float* bias, float* output,
          std::uint8_t* won, cudaStream_t stream);
/** The gradient of the convolution's output, [pixels, out]: zero but for the winners. */
void unpool(const ConvShape& shape, const float* output, const float* d_output,
            const std::uint8_t* won, float* d_conv, cudaStream_t stream);

/** sums[j] = the sum of column j of a matrix [rows, columns], in the same order every time. */
void sum_columns(const float* matrix, std::int64_t rows, std::int64_t columns, float* sums,
                 cudaStream_t stream);
/** values [rows, columns] += bias, then ReLU if asked for. */
void add_bias(float* values, std::int64_t rows, std::int64_t columns, const float* bias, bool relu,
              cudaStream_t stream);
void relu_backward(const float* output, float* gradient, std::int64_t count, cudaStream_t stream);

/** What batches added up to, on the GPU. */
struct Sums {
  double mean_losses = 0.0;
  unsigned long long correct = 0;
};
/** See mnist::softmax_cross_entropy(); adds to *sums. At most 16 classes. */
void softmax_cross_entropy(const float* logits, const std::uint8_t* labels, std::int64_t batch,
                           std::int64_t classes, float* d_logits, Sums* sums, cudaStream_t stream);

}  // namespace mnist::cuda
