// The example's CNN against a plain reference in double precision.
#include "cnn.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "digits.hpp"
#include "random.hpp"

namespace mnist {
namespace {

using Doubles = std::vector<double>;

std::size_t index(std::int64_t i) { return static_cast<std::size_t>(i); }

/** Convolution, ReLU and pooling, straight from the definition; channels last. */
Doubles conv_block(const Doubles& image, int size, int in, int out, const Doubles& weight,
                   const Doubles& bias) {
  const int conv_size = size - 4;
  Doubles conv(index(std::int64_t{conv_size} * conv_size * out));
  for (int y = 0; y < conv_size; ++y) {
    for (int x = 0; x < conv_size; ++x) {
      for (int o = 0; o < out; ++o) {
        double sum = bias[index(o)];
        for (int ky = 0; ky < 5; ++ky) {
          for (int kx = 0; kx < 5; ++kx) {
            const int pixel = ((y + ky) * size + x + kx) * in;
            const int kernel = ((o * 5 + ky) * 5 + kx) * in;
            for (int i = 0; i < in; ++i) sum += image[index(pixel + i)] * weight[index(kernel + i)];
          }
        }
        conv[index((y * conv_size + x) * out + o)] = sum;
      }
    }
  }
  const int pooled_size = conv_size / 2;
  Doubles pooled(index(std::int64_t{pooled_size} * pooled_size * out));
  for (int y = 0; y < pooled_size; ++y) {
    for (int x = 0; x < pooled_size; ++x) {
      for (int o = 0; o < out; ++o) {
        double largest = 0.0;  // ReLU
        for (const auto& [dy, dx] : {std::pair(0, 0), {0, 1}, {1, 0}, {1, 1}}) {
          largest =
              std::max(largest, conv[index(((2 * y + dy) * conv_size + 2 * x + dx) * out + o)]);
        }
        pooled[index((y * pooled_size + x) * out + o)] = largest;
      }
    }
  }
  return pooled;
}

Doubles linear(const Doubles& input, const Doubles& weight, const Doubles& bias) {
  Doubles output = bias;
  for (std::size_t o = 0; o < output.size(); ++o) {
    for (std::size_t i = 0; i < input.size(); ++i)
      output[o] += weight[o * input.size() + i] * input[i];
  }
  return output;
}

/** The mean loss of a batch. */
double reference_loss(const std::vector<Doubles>& parameters, const Images& batch) {
  double loss = 0.0;
  for (std::size_t i = 0; i < batch.labels.size(); ++i) {
    Doubles image(index(kImagePixels));
    for (std::size_t pixel = 0; pixel < image.size(); ++pixel) {
      image[pixel] = (batch.pixels[i * image.size() + pixel] / 255.0 - 0.1307) / 0.3081;
    }
    const Doubles pooled1 = conv_block(image, 28, 1, 20, parameters[0], parameters[1]);
    const Doubles pooled2 = conv_block(pooled1, 12, 20, 50, parameters[2], parameters[3]);
    Doubles hidden = linear(pooled2, parameters[4], parameters[5]);
    for (double& value : hidden) value = std::max(value, 0.0);
    const Doubles logits = linear(hidden, parameters[6], parameters[7]);
    double sum = 0.0;
    for (const double logit : logits) sum += std::exp(logit);
    loss += std::log(sum) - logits[batch.labels[i]];
  }
  return loss / static_cast<double>(batch.labels.size());
}

/** A model with storage for its gradients. */
struct Model {
  explicit Model(std::uint64_t seed, int max_batch) : cnn(seed, max_batch) {
    for (const NamedParameter& parameter : cnn.parameters()) {
      storage.emplace_back(parameter.value.size());
    }
    const std::vector<std::span<float>> gradients(storage.begin(), storage.end());
    cnn.set_gradients(gradients);
  }

  Cnn cnn;
  std::vector<std::vector<float>> storage;
};

std::vector<Doubles> values(Cnn& cnn) {
  std::vector<Doubles> result;
  for (const NamedParameter& parameter : cnn.parameters()) {
    result.emplace_back(parameter.value.begin(), parameter.value.end());
  }
  return result;
}

TEST(MnistCnn, GradientsAreTheDerivativesOfTheLoss) {
  // Five images: not a multiple of the group that one matrix product covers.
  const Images batch = generate_digits(5, 3, 0);
  Model model(1, 6);
  Random random(7);
  for (const NamedParameter& parameter : model.cnn.parameters()) {
    if (parameter.name.ends_with("bias")) {
      for (float& value : parameter.value) value = random.uniform(-0.2F, 0.2F);
    }
  }
  const BatchResult result = model.cnn.forward(batch.pixels, batch.labels);
  model.cnn.backward([](std::span<float>, std::span<const float>) {});
  std::vector<Doubles> parameters = values(model.cnn);
  EXPECT_NEAR(result.loss_sum / 5.0, reference_loss(parameters, batch), 1e-4);

  // Along a random direction through all elements of one parameter, the loss changes by the
  // product of direction and gradient.
  constexpr double kStep = 1e-6;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const std::string name = model.cnn.parameters()[p].name;
    const Doubles before = parameters[p];
    Doubles direction(before.size());
    double expected = 0.0;
    double norm = 0.0;
    for (std::size_t i = 0; i < direction.size(); ++i) {
      direction[i] = random.uniform(-1.0F, 1.0F);
      expected += direction[i] * static_cast<double>(model.storage[p][i]);
      norm += std::pow(static_cast<double>(model.storage[p][i]), 2.0);
    }
    const auto loss_at = [&](double step) {
      for (std::size_t i = 0; i < before.size(); ++i) {
        parameters[p][i] = before[i] + step * direction[i];
      }
      return reference_loss(parameters, batch);
    };
    const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2.0 * kStep);
    parameters[p] = before;
    ASSERT_GT(norm, 0.0) << name;
    EXPECT_NEAR(expected, difference, 1e-3 * std::sqrt(norm)) << name;
  }
}

TEST(MnistCnn, EmitsEachGradientOnceLastParameterFirst) {
  const Images batch = generate_digits(2, 0, 0);
  Model model(0, 2);
  model.cnn.forward(batch.pixels, batch.labels);
  std::vector<const float*> emitted;
  model.cnn.backward([&](std::span<float> parameter, std::span<const float> gradient) {
    EXPECT_EQ(parameter.size(), gradient.size());
    emitted.push_back(parameter.data());
    emitted.push_back(gradient.data());
  });
  std::vector<const float*> expected;
  const std::vector<NamedParameter> parameters = model.cnn.parameters();
  for (std::size_t i = parameters.size(); i > 0; --i) {
    expected.push_back(parameters[i - 1].value.data());
    expected.push_back(model.storage[i - 1].data());
  }
  EXPECT_EQ(emitted, expected);
}

TEST(MnistCnn, LossOfABatchIsTheSumOfItsImages) {
  const Images images = generate_digits(6, 1, 0);
  Model model(2, 6);
  const std::vector<std::uint8_t> labels(6, 4);
  double sum = 0.0;
  for (std::size_t i = 0; i < 6; ++i) {
    const auto pixels =
        std::span(images.pixels).subspan(i * index(kImagePixels), index(kImagePixels));
    sum += model.cnn.forward(pixels, std::span(labels).first(1)).loss_sum;
  }
  EXPECT_NEAR(model.cnn.forward(images.pixels, labels).loss_sum, sum, 1e-4 * sum);
}

TEST(MnistCnn, InitialWeightsDependOnTheSeedAlone) {
  Cnn one(5, 1);
  Cnn same(5, 64);
  Cnn other(6, 1);
  EXPECT_EQ(values(one), values(same));
  EXPECT_NE(values(one), values(other));
}

TEST(MnistCnn, LearnsGeneratedDigits) {
  const Images images = generate_digits(640, 0, 0);
  Model model(0, 64);
  std::array<double, 2> losses{};
  for (int step = 0; step < 40; ++step) {
    const std::size_t first = index(step % 10 * std::int64_t{64});
    const BatchResult result = model.cnn.forward(
        std::span(images.pixels).subspan(first * index(kImagePixels), 64 * index(kImagePixels)),
        std::span(images.labels).subspan(first, 64));
    losses[step < 10 ? 0 : 1] = result.loss_sum / 64.0;
    model.cnn.backward([](std::span<float>, std::span<const float>) {});
    for (std::size_t p = 0; p < model.storage.size(); ++p) {
      const std::span<float> value = model.cnn.parameters()[p].value;
      for (std::size_t i = 0; i < value.size(); ++i) value[i] -= 0.05F * model.storage[p][i];
    }
  }
  EXPECT_LT(losses[1], 0.5 * losses[0]);
}

TEST(MnistCnn, RefusesWhatDoesNotFit) {
  Model model(0, 2);
  const Images images = generate_digits(3, 0, 0);
  EXPECT_THROW(model.cnn.forward(images.pixels, images.labels), std::invalid_argument);
  EXPECT_THROW(model.cnn.forward(images.pixels, std::span(images.labels).first(2)),
               std::invalid_argument);
  std::vector<std::span<float>> gradients(model.storage.begin(), model.storage.end());
  gradients[3] = gradients[3].first(1);
  EXPECT_THROW(model.cnn.set_gradients(gradients), std::invalid_argument);
  gradients.pop_back();
  EXPECT_THROW(model.cnn.set_gradients(gradients), std::invalid_argument);
}

}  // namespace
}  // namespace mnist
