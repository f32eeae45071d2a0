// The network on the CPU: the Cnn itself.
#include <utility>

#include "network.hpp"

namespace mnist {
namespace {

class CpuNetwork final : public Network {
 public:
  explicit CpuNetwork(Cnn& host) : host_(host) {}

  tutti::Stream stream() const override { return {}; }

  std::vector<tutti::Parameter> parameters() override {
    std::vector<tutti::Parameter> list;
    for (const NamedParameter& parameter : host_.parameters()) {
      list.push_back({parameter.value, parameter.name});
    }
    return list;
  }

  void set_gradients(std::span<const tutti::View> gradients) override {
    std::vector<std::span<float>> spans;
    for (const tutti::View& view : gradients) {
      spans.emplace_back(static_cast<float*>(view.data), static_cast<std::size_t>(view.count));
    }
    host_.set_gradients(spans);
  }

  void forward(const Images& images, std::span<const std::int64_t> indices) override {
    gather(images, indices, batch_);
    const BatchResult result = host_.forward(batch_.pixels, batch_.labels);
    totals_.mean_losses += result.loss_sum / static_cast<double>(indices.size());
    totals_.correct += result.correct;
  }

  void backward(const tutti::Emit& emit) override { host_.backward(emit); }
  Totals take_totals() override { return std::exchange(totals_, {}); }
  void store() override {}
  void load() override {}

 private:
  Cnn& host_;
  Batch batch_;
  Totals totals_;
};

}  // namespace

std::unique_ptr<Network> make_cpu_network(Cnn& host) { return std::make_unique<CpuNetwork>(host); }

}  // namespace mnist
