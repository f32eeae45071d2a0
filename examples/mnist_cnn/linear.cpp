// Fully connected layer on matrix products, ReLU, softmax cross-entropy.
#include "linear.hpp"

#include <algorithm>
#include <cmath>

#include "blas.hpp"

namespace mnist {

void Linear::forward(const float* input, std::int64_t batch, const float* weight, const float* bias,
                     float* output) const {
  for (std::int64_t i = 0; i < batch; ++i) std::copy_n(bias, out, output + i * out);
  multiply(batch, out, in, Take::as_is, input, Take::transposed, weight, 1.0F, output);
}

void Linear::backward_parameters(const float* input, std::int64_t batch, const float* d_output,
                                 float* d_weight, float* d_bias) const {
  std::fill_n(d_bias, out, 0.0F);
  for (std::int64_t i = 0; i < batch; ++i) {
    for (std::int64_t j = 0; j < out; ++j) d_bias[j] += d_output[i * out + j];
  }
  multiply(out, in, batch, Take::transposed, d_output, Take::as_is, input, 0.0F, d_weight);
}

void Linear::backward_input(std::int64_t batch, const float* weight, const float* d_output,
                            float* d_input) const {
  multiply(batch, in, out, Take::as_is, d_output, Take::as_is, weight, 0.0F, d_input);
}

void relu(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = values[i] > 0.0F ? values[i] : 0.0F;
}

void relu_backward(const float* output, float* gradient, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) gradient[i] = output[i] > 0.0F ? gradient[i] : 0.0F;
}

BatchResult softmax_cross_entropy(const float* logits, const std::uint8_t* labels,
                                  std::int64_t batch, std::int64_t classes, float* d_logits) {
  BatchResult result;
  const float scale = 1.0F / static_cast<float>(batch);
  for (std::int64_t i = 0; i < batch; ++i) {
    const float* row = logits + i * classes;
    const std::int64_t label = labels[i];
    const float* largest = std::max_element(row, row + classes);
    float sum = 0.0F;
    for (std::int64_t j = 0; j < classes; ++j) sum += std::exp(row[j] - *largest);
    result.loss_sum += static_cast<double>(std::log(sum) - (row[label] - *largest));
    result.correct += largest - row == label ? 1 : 0;
    for (std::int64_t j = 0; j < classes; ++j) {
      const float probability = std::exp(row[j] - *largest) / sum;
      d_logits[i * classes + j] = scale * (probability - (j == label ? 1.0F : 0.0F));
    }
  }
  return result;
}

}  // namespace mnist
