// The network on a GPU: the layers of the Cnn, in its layout of memory.
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cuda/cublas.hpp"
#include "cuda/layers.hpp"
#include "network.hpp"

namespace mnist {
namespace {

using tutti::Buffer;
using tutti::DType;
using tutti::View;

constexpr std::int64_t kConv1Out = 20;
constexpr std::int64_t kConv2Out = 50;
constexpr std::int64_t kPooled1Size = (kImageSize - 4) / 2;
constexpr std::int64_t kPooled2Size = (kPooled1Size - 4) / 2;
constexpr Linear kLinear1{kPooled2Size * kPooled2Size * kConv2Out, 500};
constexpr Linear kLinear2{kLinear1.out, kClasses};

float* floats(const Buffer& buffer) { return static_cast<float*>(buffer.data()); }

class GpuNetwork final : public Network {
 public:
  GpuNetwork(Cnn& host, std::int64_t max_batch, tutti::Device device)
      : host_(host), max_batch_(max_batch), stream_(tutti::Stream::on(device)) {
    stream_.submit([&] { blas_.emplace(cuda_stream()); });
    for (const NamedParameter& parameter : host_.parameters()) {
      values_.push_back(room(static_cast<std::int64_t>(parameter.value.size())));
    }
    const std::int64_t pixels1 = first_conv(max_batch).pixels();
    const std::int64_t pixels2 = second_conv(max_batch).pixels();
    indices_ = stream_.allocate(max_batch * tutti::size_of(DType::i64));
    labels_ = stream_.allocate(max_batch);
    images_ = room(max_batch * kImagePixels);
    patches1_ = room(pixels1 * first_conv(1).patch());
    patches2_ = room(pixels2 * second_conv(1).patch());
    conv1_ = room(pixels1 * kConv1Out);
    conv2_ = room(pixels2 * kConv2Out);
    pooled1_ = room(first_conv(max_batch).outputs());
    pooled2_ = room(second_conv(max_batch).outputs());
    won1_ = stream_.allocate(first_conv(max_batch).outputs());
    won2_ = stream_.allocate(second_conv(max_batch).outputs());
    hidden_ = room(max_batch * kLinear1.out);
    logits_ = room(max_batch * kClasses);
    d_logits_ = room(max_batch * kClasses);
    d_hidden_ = room(max_batch * kLinear1.out);
    d_pooled2_ = room(second_conv(max_batch).outputs());
    d_pooled1_ = room(first_conv(max_batch).outputs());
    sums_ = stream_.allocate(sizeof(cuda::Sums));
    stream_.fill_with_zeros(sums_.view(DType::u8));
    load();
  }

  tutti::Stream stream() const override { return stream_; }

  std::vector<tutti::Parameter> parameters() override {
    const std::vector<NamedParameter> named = host_.parameters();
    std::vector<tutti::Parameter> list;
    for (std::size_t i = 0; i < named.size(); ++i) {
      list.push_back({values_[i].view(DType::f32), named[i].name});
    }
    return list;
  }

  void set_gradients(std::span<const View> gradients) override {
    if (gradients.size() != values_.size()) throw std::invalid_argument("one gradient a parameter");
    gradients_.assign(gradients.begin(), gradients.end());
  }

  void forward(const Images& images, std::span<const std::int64_t> indices) override {
    if (static_cast<std::int64_t>(indices.size()) > max_batch_) {
      throw std::invalid_argument("a batch has at most max_batch images");
    }
    batch_ = static_cast<std::int64_t>(indices.size());
    // From pageable memory: it has been read when copy() returns.
    stream_.copy(indices_.view(DType::i64).part(0, batch_), indices);
    const cuda::DeviceImages held = hold(images);
    stream_.submit([&] { launch_forward(held); });
  }

  void backward(const tutti::Emit& emit) override {
    stream_.submit([&] { launch_backward(emit); });
  }

  Totals take_totals() override {
    cuda::Sums sums;
    stream_.copy(View(&sums, sizeof(sums), DType::u8), sums_.view(DType::u8)).wait();
    stream_.fill_with_zeros(sums_.view(DType::u8));
    return {sums.mean_losses, static_cast<std::int64_t>(sums.correct)};
  }

  void store() override {
    const std::vector<NamedParameter> named = host_.parameters();
    for (std::size_t i = 0; i < named.size(); ++i) {
      stream_.copy(named[i].value, values_[i].view(DType::f32)).wait();
    }
  }

  void load() override {
    const std::vector<NamedParameter> named = host_.parameters();
    for (std::size_t i = 0; i < named.size(); ++i) {
      stream_.copy(values_[i].view(DType::f32), named[i].value).wait();
    }
  }

 private:
  /** A data set. */
  struct Held {
    Buffer pixels;
    Buffer labels;
  };

  static cuda::ConvShape first_conv(std::int64_t batch) {
    return {batch, kImageSize, 1, kConv1Out};
  }
  static cuda::ConvShape second_conv(std::int64_t batch) {
    return {batch, kPooled1Size, kConv1Out, kConv2Out};
  }

  cudaStream_t cuda_stream() const { return static_cast<cudaStream_t>(stream_.native()); }
  Buffer room(std::int64_t elements) const {
    return stream_.allocate(elements * tutti::size_of(DType::f32));
  }
  /** Of layer 0 to 3. */
  float* weight(std::size_t layer) const { return floats(values_[2 * layer]); }
  float* bias(std::size_t layer) const { return floats(values_[2 * layer + 1]); }
  float* d_weight(std::size_t layer) const {
    return static_cast<float*>(gradients_[2 * layer].data);
  }
  float* d_bias(std::size_t layer) const {
    return static_cast<float*>(gradients_[2 * layer + 1].data);
  }

  /** Copies a data set that it has not seen. */
  cuda::DeviceImages hold(const Images& images) {
    Held& held = held_[&images];
    if (held.labels.data() == nullptr) {
      held.pixels = stream_.allocate(static_cast<std::int64_t>(images.pixels.size()));
      held.labels = stream_.allocate(images.count());
      stream_.copy(held.pixels.view(DType::u8), std::span(images.pixels)).wait();
      stream_.copy(held.labels.view(DType::u8), std::span(images.labels)).wait();
    }
    return {static_cast<const std::uint8_t*>(held.pixels.data()),
            static_cast<const std::uint8_t*>(held.labels.data()), kImagePixels};
  }

  void convolve(const cuda::ConvShape& shape, std::size_t layer, const Buffer& in,
                const Buffer& patches, const Buffer& conv, const Buffer& out,
                const Buffer& won) const {
    cuda::unfold(shape, floats(in), floats(patches), cuda_stream());
    blas_->multiply(shape.pixels(), shape.out, shape.patch(), Take::as_is, floats(patches),
                    Take::transposed, weight(layer), 0.0F, floats(conv));
    cuda::pool(shape, floats(conv), bias(layer), floats(out),
               static_cast<std::uint8_t*>(won.data()), cuda_stream());
  }

  void connect(const Linear& linear, std::size_t layer, const Buffer& in, const Buffer& out,
               bool relu) const {
    blas_->multiply(batch_, linear.out, linear.in, Take::as_is, floats(in), Take::transposed,
                    weight(layer), 0.0F, floats(out));
    cuda::add_bias(floats(out), batch_, linear.out, bias(layer), relu, cuda_stream());
  }

  void launch_forward(const cuda::DeviceImages& held) const {
    // Mean and standard deviation of MNIST's training pixels.
    cuda::take_batch(held, static_cast<const std::int64_t*>(indices_.data()), batch_,
                     0.1307F * 255.0F, 1.0F / (0.3081F * 255.0F), floats(images_),
                     static_cast<std::uint8_t*>(labels_.data()), cuda_stream());
    convolve(first_conv(batch_), 0, images_, patches1_, conv1_, pooled1_, won1_);
    convolve(second_conv(batch_), 1, pooled1_, patches2_, conv2_, pooled2_, won2_);
    connect(kLinear1, 2, pooled2_, hidden_, true);
    connect(kLinear2, 3, hidden_, logits_, false);
    cuda::softmax_cross_entropy(floats(logits_), static_cast<const std::uint8_t*>(labels_.data()),
                                batch_, kClasses, floats(d_logits_),
                                static_cast<cuda::Sums*>(sums_.data()), cuda_stream());
  }

  void emit_layer(const tutti::Emit& emit, std::size_t layer) const {
    for (const std::size_t i : {2 * layer + 1, 2 * layer}) {
      emit(values_[i].view(DType::f32), gradients_[i]);
    }
  }

  void backward_linear(const Linear& linear, std::size_t layer, const Buffer& in,
                       const Buffer& d_out, const Buffer& d_in, const tutti::Emit& emit) const {
    cuda::sum_columns(floats(d_out), batch_, linear.out, d_bias(layer), cuda_stream());
    blas_->multiply(linear.out, linear.in, batch_, Take::transposed, floats(d_out), Take::as_is,
                    floats(in), 0.0F, d_weight(layer));
    emit_layer(emit, layer);
    blas_->multiply(batch_, linear.in, linear.out, Take::as_is, floats(d_out), Take::as_is,
                    weight(layer), 0.0F, floats(d_in));
  }

  /** The convolution's output becomes its gradient. */
  void backward_conv(const cuda::ConvShape& shape, std::size_t layer, const Buffer& out,
                     const Buffer& d_out, const Buffer& won, const Buffer& conv,
                     const Buffer& patches, const tutti::Emit& emit) const {
    cuda::unpool(shape, floats(out), floats(d_out), static_cast<const std::uint8_t*>(won.data()),
                 floats(conv), cuda_stream());
    cuda::sum_columns(floats(conv), shape.pixels(), shape.out, d_bias(layer), cuda_stream());
    blas_->multiply(shape.out, shape.patch(), shape.pixels(), Take::transposed, floats(conv),
                    Take::as_is, floats(patches), 0.0F, d_weight(layer));
    emit_layer(emit, layer);
  }

  void launch_backward(const tutti::Emit& emit) const {
    backward_linear(kLinear2, 3, hidden_, d_logits_, d_hidden_, emit);
    cuda::relu_backward(floats(hidden_), floats(d_hidden_), batch_ * kLinear1.out, cuda_stream());
    backward_linear(kLinear1, 2, pooled2_, d_hidden_, d_pooled2_, emit);
    const cuda::ConvShape second = second_conv(batch_);
    backward_conv(second, 1, pooled2_, d_pooled2_, won2_, conv2_, patches2_, emit);
    // The patches are of no more use: their gradient takes their place.
    blas_->multiply(second.pixels(), second.patch(), second.out, Take::as_is, floats(conv2_),
                    Take::as_is, weight(1), 0.0F, floats(patches2_));
    cuda::fold(second, floats(patches2_), floats(d_pooled1_), cuda_stream());
    backward_conv(first_conv(batch_), 0, pooled1_, d_pooled1_, won1_, conv1_, patches1_, emit);
  }

  Cnn& host_;
  std::int64_t max_batch_;
  std::int64_t batch_ = 0;
  tutti::Stream stream_;
  std::optional<cuda::Cublas> blas_;
  std::vector<Buffer> values_;
  std::vector<View> gradients_;
  std::map<const Images*, Held> held_;
  Buffer indices_, labels_, images_, patches1_, conv1_, pooled1_, won1_, patches2_, conv2_,
      pooled2_, won2_, hidden_, logits_;
  Buffer d_logits_, d_hidden_, d_pooled2_, d_pooled1_;
  Buffer sums_;
};

}  // namespace

std::unique_ptr<Network> make_gpu_network(Cnn& host, std::int64_t max_batch, tutti::Device device) {
  return std::make_unique<GpuNetwork>(host, max_batch, device);
}

}  // namespace mnist
