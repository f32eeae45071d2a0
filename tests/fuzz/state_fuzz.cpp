// Fuzzes the states that DistOpt loads, and the bytes in which ranks send them to each other.
#include "checkpoint.hpp"
#include "fuzz/fuzzer.hpp"
#include "tutti/dist_opt.hpp"
#include "tutti/error.hpp"

namespace tutti::fuzz {
namespace {

constexpr std::int64_t kBucket = 4;  // elements: each parameter has a bucket of its own

/** A training of two parameters on one rank. */
class Training {
 public:
  Training()
      : opt_(std::make_shared<SGD>(SgdOptions{.lr = 0.1F, .momentum = 0.9F, .dampening = 0.5F}),
             UniqueId::create(), 0, 1) {
    const std::vector<Parameter> parameters{{View(std::span(weights_)), "weights"},
                                            {View(std::span(bias_)), "bias"}};
    opt_.register_parameters(parameters);
  }

  void step() { opt_.backward_and_update(backward_, kBucket); }
  void partial_step() { opt_.backward_and_partial_update(backward_, kBucket); }
  void sparse_step() { opt_.backward_and_sparse_update(backward_, kBucket, 0.5, true); }
  void load(const OptimizerState& state) { opt_.load_state(state); }
  std::vector<std::byte> state() const { return mnist::pack_state(opt_.state()); }

 private:
  std::vector<float> weights_ = std::vector<float>(6, 1.0F);
  std::vector<float> bias_ = std::vector<float>(2, 1.0F);
  std::vector<float> gradient_ = std::vector<float>(6, 0.25F);
  Backward backward_ = [this](const Emit& emit) {
    emit(View(std::span(bias_)), ConstView(std::span(gradient_).first(2)));
    emit(View(std::span(weights_)), ConstView(std::span(gradient_)));
  };
  DistOpt opt_;
};

Input input_of(const std::vector<std::byte>& bytes) {
  Input input(bytes.size());
  std::memcpy(input.data(), bytes.data(), bytes.size());
  return input;
}

}  // namespace

std::vector<Input> seeds() {
  Training training;
  std::vector<Input> all{input_of(training.state())};
  training.step();
  all.push_back(input_of(training.state()));
  training.partial_step();
  all.push_back(input_of(training.state()));
  training.sparse_step();
  all.push_back(input_of(training.state()));
  return all;
}

void mend(Input&) {}

namespace {

/** The state is loaded whole or not at all, and a training goes on with it. */
int load(const OptimizerState& state) {
  static Training training;
  static const std::vector<std::byte> fresh = training.state();
  training.load(mnist::unpack_state(fresh));
  const std::vector<std::byte> before = training.state();
  try {
    training.load(state);
  } catch (const InvalidArgument& error) {
    expect(training.state() == before, "a state was refused, and loaded in part");
    return refused(error);
  }
  const std::vector<std::byte> after = training.state();
  training.load(mnist::unpack_state(after));
  expect(training.state() == after, "the state becomes another when it is loaded again");
  training.step();
  training.partial_step();
  training.sparse_step();
  return 0;
}

}  // namespace
}  // namespace tutti::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) try {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), size);
  return tutti::fuzz::load(mnist::unpack_state(bytes));
} catch (const mnist::CheckpointError& error) {
  return tutti::fuzz::refused(error);
}
