// Kernels of the CNN: simple ones, a thread for each output. The time goes into matrix products.
#include "cuda/layers.hpp"

#include <algorithm>
#include <string>

#include "tutti/error.hpp"

namespace mnist::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kKernel = 5;

/** Blocks for a thread an element; threads take several where there are very many. */
unsigned grid_for(std::int64_t count) {
  constexpr std::int64_t kMostBlocks = 65535;
  return static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kMostBlocks));
}

/** Calls action(i) for i < count, spread over the grid. */
template <class Action>
__device__ void for_each(std::int64_t count, const Action& action) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    action(i);
  }
}

__global__ void __launch_bounds__(kThreads)
    take_batch_kernel(DeviceImages images, const std::int64_t* indices, std::int64_t batch,
                      float mean, float inverse_deviation, float* values, std::uint8_t* labels) {
  for_each(batch * images.size, [&](std::int64_t i) {
    const std::int64_t from = indices[i / images.size];
    const std::int64_t pixel = i % images.size;
    values[i] =
        (static_cast<float>(images.pixels[from * images.size + pixel]) - mean) * inverse_deviation;
    if (pixel == 0) labels[i / images.size] = images.labels[from];
  });
}

__global__ void __launch_bounds__(kThreads)
    unfold_kernel(ConvShape shape, const float* images, float* patches) {
  const int row = kKernel * static_cast<int>(shape.in);
  const int conv = static_cast<int>(shape.size) - kKernel + 1;
  for_each(shape.batch * conv * conv * kKernel * row, [&](std::int64_t i) {
    const int in_row = static_cast<int>(i % row);
    std::int64_t rest = i / row;
    const int ky = static_cast<int>(rest % kKernel);
    rest /= kKernel;
    const int x = static_cast<int>(rest % conv);
    rest /= conv;
    const int y = static_cast<int>(rest % conv);
    const std::int64_t image = rest / conv;
    patches[i] = images[((image * shape.size + y + ky) * shape.size + x) * shape.in + in_row];
  });
}

__global__ void __launch_bounds__(kThreads)
    fold_kernel(ConvShape shape, const float* patches, float* images) {
  const int conv = static_cast<int>(shape.size) - kKernel + 1;
  for_each(shape.batch * shape.size * shape.size * shape.in, [&](std::int64_t i) {
    const std::int64_t channel = i % shape.in;
    std::int64_t rest = i / shape.in;
    const int x = static_cast<int>(rest % shape.size);
    rest /= shape.size;
    const int y = static_cast<int>(rest % shape.size);
    const std::int64_t image = rest / shape.size;
    float sum = 0.0F;
    for (int ky = 0; ky < kKernel; ++ky) {
      for (int kx = 0; kx < kKernel; ++kx) {
        const int from_y = y - ky;
        const int from_x = x - kx;
        if (from_y < 0 || from_y >= conv || from_x < 0 || from_x >= conv) continue;
        const std::int64_t pixel = (image * conv + from_y) * conv + from_x;
        sum += patches[(pixel * kKernel * kKernel + ky * kKernel + kx) * shape.in + channel];
      }
    }
    images[i] = sum;
  });
}

/** Where the window of output element i starts in the convolution. */
__device__ std::int64_t corner_of(const ConvShape& shape, std::int64_t i) {
  const std::int64_t conv = shape.size - kKernel + 1;
  const std::int64_t pooled = conv / 2;
  const std::int64_t channel = i % shape.out;
  std::int64_t rest = i / shape.out;
  const std::int64_t x = rest % pooled;
  rest /= pooled;
  const std::int64_t y = rest % pooled;
  const std::int64_t image = rest / pooled;
  return ((image * conv + 2 * y) * conv + 2 * x) * shape.out + channel;
}

/** From the first element of a window to element `place` of its four. */
__device__ std::int64_t step_to(const ConvShape& shape, int place) {
  return ((place / 2) * (shape.size - kKernel + 1) + place % 2) * shape.out;
}

__global__ void __launch_bounds__(kThreads)
    pool_kernel(ConvShape shape, std::int64_t count, const float* conv, const float* bias,
                float* output, std::uint8_t* won) {
  for_each(count, [&](std::int64_t i) {
    const float* corner = conv + corner_of(shape, i);
    float largest = corner[0];
    int winner = 0;
    for (int place = 1; place < 4; ++place) {
      const float other = corner[step_to(shape, place)];
      if (other > largest) {
        largest = other;
        winner = place;
      }
    }
    const float sum = largest + bias[i % shape.out];
    output[i] = sum > 0.0F ? sum : 0.0F;
    won[i] = static_cast<std::uint8_t>(winner);
  });
}

__global__ void __launch_bounds__(kThreads)
    unpool_kernel(ConvShape shape, std::int64_t count, const float* output, const float* d_output,
                  const std::uint8_t* won, float* d_conv) {
  for_each(count, [&](std::int64_t i) {
    float* corner = d_conv + corner_of(shape, i);
    const float gradient = output[i] > 0.0F ? d_output[i] : 0.0F;
    for (int place = 0; place < 4; ++place) {
      corner[step_to(shape, place)] = place == won[i] ? gradient : 0.0F;
    }
  });
}

/** A block for each column. */
__global__ void __launch_bounds__(kThreads)
    sum_columns_kernel(const float* matrix, std::int64_t rows, std::int64_t columns, float* sums) {
  __shared__ float parts[kThreads];
  float own = 0.0F;
  for (std::int64_t row = threadIdx.x; row < rows; row += kThreads) {
    own += matrix[row * columns + blockIdx.x];
  }
  parts[threadIdx.x] = own;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = parts[0];
}

__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(float* values, std::int64_t count, std::int64_t columns, const float* bias,
                    bool relu) {
  for_each(count, [&](std::int64_t i) {
    const float sum = values[i] + bias[i % columns];
    values[i] = relu && !(sum > 0.0F) ? 0.0F : sum;
  });
}

__global__ void __launch_bounds__(kThreads)
    relu_backward_kernel(const float* output, float* gradient, std::int64_t count) {
  for_each(count, [&](std::int64_t i) { gradient[i] = output[i] > 0.0F ? gradient[i] : 0.0F; });
}

/** One block, so that losses are added up in the same order every time. */
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const float* logits, const std::uint8_t* labels, int batch, int classes,
                   float* d_logits, Sums* sums) {
  __shared__ double losses[kThreads];
  __shared__ unsigned rights[kThreads];
  const float scale = 1.0F / static_cast<float>(batch);
  double loss = 0.0;
  unsigned right = 0;
  for (int i = threadIdx.x; i < batch; i += kThreads) {
    const float* row = logits + i * classes;
    const int label = labels[i];
    int largest = 0;
    for (int j = 1; j < classes; ++j) {
      if (row[j] > row[largest]) largest = j;
    }
    float sum = 0.0F;
    for (int j = 0; j < classes; ++j) sum += expf(row[j] - row[largest]);
    loss += static_cast<double>(logf(sum) - (row[label] - row[largest]));
    right += largest == label ? 1 : 0;
    for (int j = 0; j < classes; ++j) {
      const float probability = expf(row[j] - row[largest]) / sum;
      d_logits[i * classes + j] = scale * (probability - (j == label ? 1.0F : 0.0F));
    }
  }
  losses[threadIdx.x] = loss;
  rights[threadIdx.x] = right;
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      losses[threadIdx.x] += losses[threadIdx.x + half];
      rights[threadIdx.x] += rights[threadIdx.x + half];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    sums->mean_losses += losses[0] / batch;
    sums->correct += rights[0];
  }
}

void check_launch(const char* kernel) { check(cudaGetLastError(), kernel); }

}  // namespace

void check(cudaError_t code, const char* call) {
  if (code == cudaSuccess) return;
  throw tutti::Error(std::string(call) + ": " + cudaGetErrorString(code));
}

void take_batch(const DeviceImages& images, const std::int64_t* indices, std::int64_t batch,
                float mean, float inverse_deviation, float* values, std::uint8_t* labels,
                cudaStream_t stream) {
  take_batch_kernel<<<grid_for(batch * images.size), kThreads, 0, stream>>>(
      images, indices, batch, mean, inverse_deviation, values, labels);
  check_launch("take_batch_kernel");
}

void unfold(const ConvShape& shape, const float* images, float* patches, cudaStream_t stream) {
  unfold_kernel<<<grid_for(shape.pixels() * shape.patch()), kThreads, 0, stream>>>(shape, images,
                                                                                   patches);
  check_launch("unfold_kernel");
}

void fold(const ConvShape& shape, const float* patches, float* images, cudaStream_t stream) {
  const std::int64_t count = shape.batch * shape.size * shape.size * shape.in;
  fold_kernel<<<grid_for(count), kThreads, 0, stream>>>(shape, patches, images);
  check_launch("fold_kernel");
}

void pool(const ConvShape& shape, const float* conv, const float* bias, float* output,
          std::uint8_t* won, cudaStream_t stream) {
  pool_kernel<<<grid_for(shape.outputs()), kThreads, 0, stream>>>(shape, shape.outputs(), conv,
                                                                  bias, output, won);
  check_launch("pool_kernel");
}

void unpool(const ConvShape& shape, const float* output, const float* d_output,
            const std::uint8_t* won, float* d_conv, cudaStream_t stream) {
  unpool_kernel<<<grid_for(shape.outputs()), kThreads, 0, stream>>>(shape, shape.outputs(), output,
                                                                    d_output, won, d_conv);
  check_launch("unpool_kernel");
}

void sum_columns(const float* matrix, std::int64_t rows, std::int64_t columns, float* sums,
                 cudaStream_t stream) {
  sum_columns_kernel<<<static_cast<unsigned>(columns), kThreads, 0, stream>>>(matrix, rows, columns,
                                                                              sums);
  check_launch("sum_columns_kernel");
}

void add_bias(float* values, std::int64_t rows, std::int64_t columns, const float* bias, bool relu,
              cudaStream_t stream) {
  const std::int64_t count = rows * columns;
  add_bias_kernel<<<grid_for(count), kThreads, 0, stream>>>(values, count, columns, bias, relu);
  check_launch("add_bias_kernel");
}

void relu_backward(const float* output, float* gradient, std::int64_t count, cudaStream_t stream) {
  relu_backward_kernel<<<grid_for(count), kThreads, 0, stream>>>(output, gradient, count);
  check_launch("relu_backward_kernel");
}

void softmax_cross_entropy(const float* logits, const std::uint8_t* labels, std::int64_t batch,
                           std::int64_t classes, float* d_logits, Sums* sums, cudaStream_t stream) {
  softmax_kernel<<<1, kThreads, 0, stream>>>(logits, labels, static_cast<int>(batch),
                                             static_cast<int>(classes), d_logits, sums);
  check_launch("softmax_kernel");
}

}  // namespace mnist::cuda
