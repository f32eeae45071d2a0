// Convolution block: im2col and matrix products forward, a walk over the winners backward.
#include "conv_block.hpp"

#include <algorithm>
#include <cstring>

#include "blas.hpp"
#include "float4.hpp"

namespace mnist {
namespace {

std::size_t room(std::int64_t elements, std::int64_t times = 1) {
  return static_cast<std::size_t>(elements * times);
}

}  // namespace

template <std::int64_t kIn, std::int64_t kSize, std::int64_t kOut>
ConvBlock<kIn, kSize, kOut>::ConvBlock(std::int64_t max_batch)
    : patches_(room(kGroup * kPixels, kPatch)),
      conv_(room(kGroup * kPixels, kOut)),
      won_(room(max_batch, kOutElements)),
      winners_(room(max_batch, kOutElements)),
      counts_(room(max_batch, kOut)),
      padded_gradient_(room(kOut * kKernel, kPaddedRow)) {}

template <std::int64_t kIn, std::int64_t kSize, std::int64_t kOut>
void ConvBlock<kIn, kSize, kOut>::unfold(const float* image, float* patches) const {
  for (std::int64_t y = 0; y < kConvSize; ++y) {
    for (std::int64_t x = 0; x < kConvSize; ++x) {
      const float* patch = image + (y * kSize + x) * kIn;
      for (std::int64_t row = 0; row < kKernel; ++row, patches += kRow) {
        std::memcpy(patches, patch + row * kSize * kIn, kRow * sizeof(float));
      }
    }
  }
}

// Bias and ReLU come after the maximum: they do not change which element wins, and there is a
// quarter of the elements left.
template <std::int64_t kIn, std::int64_t kSize, std::int64_t kOut>
void ConvBlock<kIn, kSize, kOut>::pool(const float* conv, const float* bias, float* output,
                                       std::int32_t* winners) const {
  constexpr auto kOneRight = static_cast<std::int32_t>(kIn);
  constexpr auto kOneDown = static_cast<std::int32_t>(kSize * kIn);
  const auto pool4 = [&](std::int64_t x, std::int64_t y, std::int64_t channel) {
    const float* corner = conv + (2 * y * kConvSize + 2 * x) * kOut + channel;
    const Float4 top_left = load4(corner);
    const Float4 top_right = load4(corner + kOut);
    const Float4 bottom_left = load4(corner + kConvSize * kOut);
    const Float4 bottom_right = load4(corner + kConvSize * kOut + kOut);
    // Comparisons give -1 for true, 0 for false.
    const Int4 right_of_top = top_right > top_left;
    const Int4 right_of_bottom = bottom_right > bottom_left;
    const Float4 top = right_of_top ? top_right : top_left;
    const Float4 bottom = right_of_bottom ? bottom_right : bottom_left;
    const Int4 below = bottom > top;
    const Float4 sum = (below ? bottom : top) + load4(bias + channel);
    const Int4 right = below ? right_of_bottom : right_of_top;
    const auto patch = static_cast<std::int32_t>((2 * y * kSize + 2 * x) * kIn);
    const std::int64_t target = (y * kPooledSize + x) * kOut + channel;
    store4(output + target, sum > 0.0F ? sum : Float4{});
    store4(winners + target, patch - kOneDown * below - kOneRight * right);
  };
  for (std::int64_t y = 0; y < kPooledSize; ++y) {
    for (std::int64_t x = 0; x < kPooledSize; ++x) {
      for (std::int64_t channel = 0; channel + 4 <= kOut; channel += 4) pool4(x, y, channel);
      if constexpr (kOut % 4 != 0) pool4(x, y, kOut - 4);  // overlaps the one before
    }
  }
}

template <std::int64_t kIn, std::int64_t kSize, std::int64_t kOut>
void ConvBlock<kIn, kSize, kOut>::forward(const float* images, std::int64_t batch,
                                          const float* weight, const float* bias, float* output) {
  for (std::int64_t first = 0; first < batch; first += kGroup) {
    const std::int64_t group = std::min(kGroup, batch - first);
    for (std::int64_t i = 0; i < group; ++i) {
      unfold(images + (first + i) * kInElements, patches_.data() + i * kPixels * kPatch);
    }
    multiply(group * kPixels, kOut, kPatch, Take::as_is, patches_.data(), Take::transposed, weight,
             0.0F, conv_.data());
    for (std::int64_t i = 0; i < group; ++i) {
      const std::int64_t start = (first + i) * kOutElements;
      pool(conv_.data() + i * kPixels * kOut, bias, output + start, won_.data() + start);
    }
  }
}

template <std::int64_t kIn, std::int64_t kSize, std::int64_t kOut>
void ConvBlock<kIn, kSize, kOut>::list_winners(std::int64_t index, const float* output,
                                               const float* d_output) {
  const std::int64_t start = index * kOutElements;
  for (std::int64_t channel = 0; channel < kOut; ++channel) {
    Winner* winners = winners_.data() + start + channel * kWindows;
    int count = 0;
    for (std::int64_t window = 0; window < kWindows; ++window) {
      const std::int64_t element = start + window * kOut + channel;
      // Always written, kept only if ReLU let it pass: no branch to mispredict.
      winners[count] = Winner{d_output[element], won_.data()[element]};
      count += output[element] > 0.0F ? 1 : 0;
    }
    counts_.data()[index * kOut + channel] = count;
  }
}

// The gradient of a weight is the sum, over the winners, of gradient times the pixel it met. Five
// vectors, one in each row of the kernel, are summed at a time, so that they stay in registers.
template <std::int64_t kIn, std::int64_t kSize, std::int64_t kOut>
void ConvBlock<kIn, kSize, kOut>::add_parameter_gradients(std::int64_t index, const float* image,
                                                          float* d_bias) {
  for (std::int64_t channel = 0; channel < kOut; ++channel) {
    const Winner* winners = winners_.data() + index * kOutElements + channel * kWindows;
    const int count = counts_.data()[index * kOut + channel];
    for (std::int64_t i = 0; i < count; ++i) d_bias[channel] += winners[i].gradient;
    for (std::int64_t vector = 0; vector < kRowVectors; ++vector) {
      float* target = padded_gradient_.data() + channel * kKernel * kPaddedRow + vector * 4;
      Float4 sum[kKernel];
      for (std::int64_t row = 0; row < kKernel; ++row) sum[row] = load4(target + row * kPaddedRow);
      for (std::int64_t i = 0; i < count; ++i) {
        const float* patch = image + winners[i].patch + vector * 4;
        for (std::int64_t row = 0; row < kKernel; ++row) {
          sum[row] += winners[i].gradient * load4(patch + row * kSize * kIn);
        }
      }
      for (std::int64_t row = 0; row < kKernel; ++row) store4(target + row * kPaddedRow, sum[row]);
    }
  }
}

template <std::int64_t kIn, std::int64_t kSize, std::int64_t kOut>
void ConvBlock<kIn, kSize, kOut>::backward_parameters(const float* images, std::int64_t batch,
                                                      const float* output, const float* d_output,
                                                      float* d_weight, float* d_bias) {
  std::fill(padded_gradient_.begin(), padded_gradient_.end(), 0.0F);
  std::fill_n(d_bias, kOut, 0.0F);
  for (std::int64_t i = 0; i < batch; ++i) {
    list_winners(i, output, d_output);
    add_parameter_gradients(i, images + i * kInElements, d_bias);
  }
  for (std::int64_t row = 0; row < kOut * kKernel; ++row) {
    std::copy_n(padded_gradient_.data() + row * kPaddedRow, kRow, d_weight + row * kRow);
  }
}

// Each winner adds its gradient times the kernel to the patch that it looked at.
template <std::int64_t kIn, std::int64_t kSize, std::int64_t kOut>
void ConvBlock<kIn, kSize, kOut>::backward_images(std::int64_t batch, const float* weight,
                                                  float* d_images) const requires(kIn % 4 == 0) {
  std::fill_n(d_images, room(batch, kInElements), 0.0F);
  for (std::int64_t index = 0; index < batch * kOut; ++index) {
    const std::int64_t channel = index % kOut;
    const float* kernel = weight + channel * kPatch;
    float* d_image = d_images + index / kOut * kInElements;
    const Winner* winners = winners_.data() + index * kWindows;
    for (std::int64_t i = 0; i < counts_.data()[index]; ++i) {
      const float gradient = winners[i].gradient;
      for (std::int64_t row = 0; row < kKernel; ++row) {
        float* target = d_image + winners[i].patch + row * kSize * kIn;
        const float* source = kernel + row * kRow;
        for (std::int64_t x = 0; x < kKernel; ++x, target += kIn, source += kIn) {
          for (std::int64_t in = 0; in < kIn; in += 4) {
            store4(target + in, load4(target + in) + gradient * load4(source + in));
          }
        }
      }
    }
  }
}

template class ConvBlock<1, 28, 20>;
template class ConvBlock<20, 12, 50>;

}  // namespace mnist
