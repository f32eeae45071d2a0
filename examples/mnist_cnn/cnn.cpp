// The CNN, put together from its layers.
#include "cnn.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>

#include "random.hpp"

namespace mnist {
namespace {

constexpr std::array<const char*, 8> kNames{"conv1.weight",   "conv1.bias",     "conv2.weight",
                                            "conv2.bias",     "linear1.weight", "linear1.bias",
                                            "linear2.weight", "linear2.bias"};

std::vector<float> zeros(std::int64_t elements, std::int64_t times = 1, std::int64_t slack = 0) {
  return std::vector<float>(static_cast<std::size_t>(elements * times + slack));
}

/** Uniform with He's variance 2 / fan_in, which keeps activations alive behind ReLU. */
std::vector<float> initial_weights(std::int64_t count, std::int64_t fan_in, Random& random) {
  const float limit = std::sqrt(6.0F / static_cast<float>(fan_in));
  std::vector<float> weights(static_cast<std::size_t>(count));
  for (float& weight : weights) weight = random.uniform(-limit, limit);
  return weights;
}

}  // namespace

Cnn::Cnn(std::uint64_t seed, std::int64_t max_batch)
    : conv1_(max_batch),
      conv2_(max_batch),
      gradients_(kParameters),
      images_(zeros(kImagePixels, max_batch, Conv1::kSlack)),
      pooled1_(zeros(Conv1::kOutElements, max_batch, Conv2::kSlack)),
      pooled2_(zeros(Conv2::kOutElements, max_batch)),
      hidden_(zeros(kLinear1.out, max_batch)),
      logits_(zeros(kClasses, max_batch)),
      d_pooled1_(pooled1_),
      d_pooled2_(pooled2_),
      d_hidden_(hidden_),
      d_logits_(logits_),
      labels_(static_cast<std::size_t>(max_batch)) {
  Random random(seed);
  const auto add_layer = [&](std::int64_t weights, std::int64_t biases) {
    values_.push_back(initial_weights(weights, weights / biases, random));
    values_.push_back(zeros(biases));
  };
  add_layer(Conv1::kWeights, 20);
  add_layer(Conv2::kWeights, 50);
  add_layer(kLinear1.in * kLinear1.out, kLinear1.out);
  add_layer(kLinear2.in * kLinear2.out, kLinear2.out);
}

std::vector<NamedParameter> Cnn::parameters() {
  std::vector<NamedParameter> result;
  for (std::size_t i = 0; i < kParameters; ++i) result.push_back({kNames[i], values_[i]});
  return result;
}

void Cnn::set_gradients(std::span<const std::span<float>> gradients) {
  if (gradients.size() != kParameters) throw std::invalid_argument("Cnn: one gradient a parameter");
  for (std::size_t i = 0; i < kParameters; ++i) {
    if (gradients[i].size() != values_[i].size()) {
      throw std::invalid_argument(std::string("Cnn: wrong size of the gradient of ") + kNames[i]);
    }
  }
  gradients_.assign(gradients.begin(), gradients.end());
}

BatchResult Cnn::forward(std::span<const std::uint8_t> pixels,
                         std::span<const std::uint8_t> labels) {
  if (labels.size() > labels_.size() || pixels.size() != labels.size() * kImagePixels) {
    throw std::invalid_argument("Cnn: a batch has at most max_batch images of 784 pixels");
  }
  batch_ = static_cast<std::int64_t>(labels.size());
  std::copy(labels.begin(), labels.end(), labels_.begin());

  // Mean and standard deviation of MNIST's training pixels: inputs around zero train faster.
  constexpr float kMean = 0.1307F * 255.0F;
  constexpr float kInverseDeviation = 1.0F / (0.3081F * 255.0F);
  std::transform(pixels.begin(), pixels.end(), images_.begin(), [](std::uint8_t pixel) {
    return (static_cast<float>(pixel) - kMean) * kInverseDeviation;
  });

  conv1_.forward(images_.data(), batch_, value(kConv1Weight), value(kConv1Bias), pooled1_.data());
  conv2_.forward(pooled1_.data(), batch_, value(kConv2Weight), value(kConv2Bias), pooled2_.data());
  kLinear1.forward(pooled2_.data(), batch_, value(kLinear1Weight), value(kLinear1Bias),
                   hidden_.data());
  relu(hidden_.data(), batch_ * kLinear1.out);
  kLinear2.forward(hidden_.data(), batch_, value(kLinear2Weight), value(kLinear2Bias),
                   logits_.data());
  return softmax_cross_entropy(logits_.data(), labels_.data(), batch_, kClasses, d_logits_.data());
}

void Cnn::backward(const EmitGradient& emit) {
  const auto emit_layer = [&](Index weight, Index bias) {
    emit(values_[bias], gradients_[bias]);
    emit(values_[weight], gradients_[weight]);
  };

  kLinear2.backward_parameters(hidden_.data(), batch_, d_logits_.data(), gradient(kLinear2Weight),
                               gradient(kLinear2Bias));
  emit_layer(kLinear2Weight, kLinear2Bias);
  kLinear2.backward_input(batch_, value(kLinear2Weight), d_logits_.data(), d_hidden_.data());
  relu_backward(hidden_.data(), d_hidden_.data(), batch_ * kLinear1.out);

  kLinear1.backward_parameters(pooled2_.data(), batch_, d_hidden_.data(), gradient(kLinear1Weight),
                               gradient(kLinear1Bias));
  emit_layer(kLinear1Weight, kLinear1Bias);
  kLinear1.backward_input(batch_, value(kLinear1Weight), d_hidden_.data(), d_pooled2_.data());

  conv2_.backward_parameters(pooled1_.data(), batch_, pooled2_.data(), d_pooled2_.data(),
                             gradient(kConv2Weight), gradient(kConv2Bias));
  emit_layer(kConv2Weight, kConv2Bias);
  conv2_.backward_images(batch_, value(kConv2Weight), d_pooled1_.data());

  conv1_.backward_parameters(images_.data(), batch_, pooled1_.data(), d_pooled1_.data(),
                             gradient(kConv1Weight), gradient(kConv1Bias));
  emit_layer(kConv1Weight, kConv1Bias);
}

}  // namespace mnist
