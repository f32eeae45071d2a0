// A fully connected layer.
#pragma once

#include <cstdint>

namespace mnist {

/**
 * output = input * weight^T + bias.
 *
 * Shapes, row-major float32: input [batch, in], weight [out, in], bias [out], output [batch, out].
 */
struct Linear {
  std::int64_t in;
  std::int64_t out;

  /** Writes `output`. */
  void forward(const float* input, std::int64_t batch, const float* weight, const float* bias,
               float* output) const;

  /** Writes the gradients of weight and bias. */
  void backward_parameters(const float* input, std::int64_t batch, const float* d_output,
                           float* d_weight, float* d_bias) const;

  /** Writes the gradient of the input. */
  void backward_input(std::int64_t batch, const float* weight, const float* d_output,
                      float* d_input) const;
};

/** Sets negative values to zero. */
void relu(float* values, std::int64_t count);

/** Sets the gradient to zero where ReLU's output is zero. */
void relu_backward(const float* output, float* gradient, std::int64_t count);

/** What a batch gave: the sum of its losses, and how many images were told rightly. */
struct BatchResult {
  double loss_sum = 0.0;
  int correct = 0;
};

/**
 * Softmax cross-entropy of logits [batch, classes]; d_logits becomes the gradient of the mean loss.
 */
BatchResult softmax_cross_entropy(const float* logits, const std::uint8_t* labels,
                                  std::int64_t batch, std::int64_t classes, float* d_logits);

}  // namespace mnist
