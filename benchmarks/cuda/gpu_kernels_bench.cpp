// How fast the kernels of GPU 0 are, beside its own copy, a pass that reads, and CUB's radix sort.
//
//   gpu_kernels_bench [--n N] [--runs R] [--out FOLDER]
//   gpu_kernels_bench --devices      names the GPUs
//
// With --out, FOLDER gets values.f32 and the indices that top-K found in them, top_k_1pct.u32 and
// so on, for topk_vs_torch.py. Prints a JSON line for each kernel: the median time of the runs, the
// bytes that it has to move, and `of_copy`, its bandwidth as a fraction of that of cudaMemcpy on
// the same GPU; for selections `passes`, how many passes that read take as long. `checked`, of ours
// alone: whether the result is the CPU's. Status 77 without a GPU, 1 if a result is wrong.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "cuda/peers.hpp"
#include "device/cpu/kernels.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/kernels.hpp"
#include "support/numbers.hpp"
#include "support/turns.hpp"
#include "tutti/error.hpp"
#include "tutti/select.hpp"

namespace {

using tutti::Buffer;
using tutti::DType;
using tutti::Stream;
using tutti::View;
using tutti::cuda::check;

constexpr int kNoGpu = 77;

/** A GPU's stream, and times on it. */
class Gpu {
 public:
  Gpu() : stream_(Stream::on({tutti::DeviceKind::cuda, 0})) {
    check(cudaSetDevice(0), "cudaSetDevice");
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }

  const Stream& stream() const { return stream_; }
  cudaStream_t native() const { return static_cast<cudaStream_t>(stream_.native()); }

  /** The median of `runs` launches, in microseconds, after one that warms up. */
  double median_us(int runs, const std::function<void()>& launch) const {
    std::vector<double> seconds;
    launch();
    for (int run = 0; run < runs; ++run) {
      check(cudaEventRecord(begin_, native()), "cudaEventRecord");
      launch();
      check(cudaEventRecord(end_, native()), "cudaEventRecord");
      check(cudaEventSynchronize(end_), "cudaEventSynchronize");
      float ms = 0.0F;
      check(cudaEventElapsedTime(&ms, begin_, end_), "cudaEventElapsedTime");
      seconds.push_back(1e-3 * static_cast<double>(ms));
    }
    return tutti::bench::median_us(seconds);
  }

  template <class T>
  std::vector<T> read(const T* data, std::int64_t count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    const auto bytes = static_cast<std::int64_t>(sizeof(T)) * count;
    stream_
        .copy({values.data(), bytes, DType::u8},
              {data, bytes, DType::u8, {tutti::DeviceKind::cuda, 0}})
        .wait();
    return values;
  }

 private:
  Stream stream_;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

float* floats(const Buffer& buffer) { return static_cast<float*>(buffer.data()); }

/** Everything that is measured: on one gradient, and top-K on two with many equal elements. */
class Bench {
 public:
  Bench(std::int64_t count, int runs, std::string out)
      : count_(count), runs_(runs), out_(std::move(out)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    values_.resize(static_cast<std::size_t>(count));
    for (float& value : values_) {
      const float x = normal(random);
      value = x * x * x * 1e-3F;
    }
    gradient_ = room();
    other_ = room();
    third_ = room();
    gpu_.stream().copy(gradient_.view(DType::f32), std::span<const float>(values_)).wait();
    gpu_.stream().fill_with_zeros(third_.view(DType::f32));
    write("values.f32", std::span<const float>(values_));
  }

  bool run() {
    const std::int64_t bytes = 4 * count_;
    const double copy_us = gpu_.median_us(runs_, [&] {
      check(cudaMemcpyAsync(other_.data(), gradient_.data(), static_cast<std::size_t>(bytes),
                            cudaMemcpyDeviceToDevice, gpu_.native()),
            "cudaMemcpyAsync");
    });
    copy_bandwidth_ = 2.0 * static_cast<double>(bytes) / copy_us;
    print("copy", copy_us, 2 * bytes);
    read_us_ = gpu_.median_us(runs_, [&] {
      tutti::bench::read_pass(floats(gradient_), count_, floats(other_), gpu_.native());
    });
    print("read", read_us_, bytes);
    convert(DType::f16);
    convert(DType::bf16);
    sgd();
    // The magnitude that about 1 % reach.
    select(
        "above_1pct",
        [&](const tutti::Selected& to) {
          tutti::cuda::select_above(floats(gradient_), nullptr, count_, kOnePercent, to, scratch_);
        },
        [&](tutti::Selector& selector) {
          return selector.above(std::span<const float>(values_), kOnePercent);
        });
    top_k("top_k_0.1pct", count_ / 1000);
    top_k("top_k_1pct", count_ / 100);
    sort();
    fill([](std::size_t i) { return i % 1000 == 7 ? static_cast<float>(i) : 0.0F; });
    top_k("ties_mostly_zeros", count_ / 100);
    fill([](std::size_t /*i*/) { return -2.0F; });
    top_k("ties_one_value", count_ / 100);
    return good_;
  }

 private:
  static constexpr float kOnePercent = 0.01709F;  // 2.576 cubed, in thousandths

  Buffer room() const { return gpu_.stream().allocate(4 * count_); }

  /** `same`: whether the result is the expected one; unset where nothing was compared. */
  void print(const char* name, double us, std::int64_t bytes, std::optional<bool> same = {}) {
    const double bandwidth = static_cast<double>(bytes) / us;  // MB/s
    const char* checked = !same ? "" : *same ? ", \"checked\": true" : ", \"checked\": false";
    std::printf(
        "{\"kernel\": \"%s\", \"n\": %lld, \"us\": %.1f, \"gb_per_s\": %.0f, \"of_copy\": %.3f, "
        "\"passes\": %.2f%s}\n",
        name, static_cast<long long>(count_), us, bandwidth / 1e3, bandwidth / copy_bandwidth_,
        read_us_ > 0.0 ? us / read_us_ : 0.0, checked);
    std::fflush(stdout);
    good_ = good_ && same.value_or(true);
  }

  template <class T>
  void write(const std::string& name, std::span<const T> elements) const {
    if (out_.empty()) return;
    std::ofstream file(out_ + "/" + name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(elements.data()),
               static_cast<std::streamsize>(elements.size_bytes()));
    if (!file.flush()) throw tutti::Error("cannot write " + out_ + "/" + name);
  }

  void convert(DType wire) {
    const tutti::Piece there{gradient_.data(), other_.data(), count_};
    const tutti::Piece back{other_.data(), third_.data(), count_};
    const std::string name(tutti::name_of(wire));
    const double narrow_us = gpu_.median_us(runs_, [&] {
      tutti::cuda::narrow(std::span(&there, 1), wire, {.scale = 0.5F, .limit = 100.0F},
                          gpu_.stream());
    });
    std::vector<std::uint16_t> expected(values_.size());
    tutti::cpu::narrow(values_.data(), expected.data(), count_, wire,
                       {.scale = 0.5F, .limit = 100.0F});
    const bool same =
        gpu_.read(static_cast<const std::uint16_t*>(other_.data()), count_) == expected;
    print(("narrow_" + name).c_str(), narrow_us, 6 * count_, same);
    const double widen_us = gpu_.median_us(runs_, [&] {
      tutti::cuda::widen(std::span(&back, 1), wire, 1.0F, nullptr, gpu_.stream());
    });
    std::vector<float> wide(values_.size());
    tutti::cpu::widen(expected.data(), wide.data(), count_, wire, 1.0F);
    print(("widen_" + name).c_str(), widen_us, 6 * count_,
          gpu_.read(floats(third_), count_) == wide);
  }

  void sgd() {
    const tutti::SgdStep step{.lr = 0.1F, .momentum = 0.9F, .weight_decay = 1e-4F};
    const tutti::SgdPiece piece{floats(other_), floats(gradient_), floats(third_), count_};
    gpu_.stream().fill_with_zeros(other_.view(DType::f32));
    gpu_.stream().fill_with_zeros(third_.view(DType::f32));
    const auto launch = [&] { tutti::cuda::sgd_update(std::span(&piece, 1), step, gpu_.stream()); };
    launch();
    std::vector<float> parameter(values_.size());
    std::vector<float> velocity(values_.size());
    tutti::cpu::sgd_update(parameter.data(), values_.data(), velocity.data(), count_, step);
    const bool same = gpu_.read(floats(other_), count_) == parameter &&
                      gpu_.read(floats(third_), count_) == velocity;
    print("sgd_momentum", gpu_.median_us(runs_, launch), 20 * count_, same);
  }

  template <class OnGpu, class OnCpu>
  void select(const char* name, const OnGpu& on_gpu, const OnCpu& on_cpu) {
    const Buffer number = gpu_.stream().allocate(sizeof(std::uint32_t));
    auto* indices = static_cast<std::uint32_t*>(other_.data());
    const tutti::Selected to{indices, floats(third_), static_cast<std::uint32_t*>(number.data()),
                             static_cast<std::uint32_t>(count_)};
    const double us = gpu_.median_us(runs_, [&] { on_gpu(to); });
    tutti::Selector selector;
    const tutti::SparseView expected = on_cpu(selector);
    const std::uint32_t found = gpu_.read(to.count, 1)[0];
    bool same = found == expected.count;
    if (same) {
      const std::vector<std::uint32_t> chosen = gpu_.read(indices, found);
      write(std::string(name) + ".u32", std::span<const std::uint32_t>(chosen));
      same = chosen == std::vector<std::uint32_t>(expected.indices, expected.indices + found) &&
             gpu_.read(floats(third_), found) ==
                 std::vector<float>(expected.values, expected.values + found);
    }
    print(name, us, 4 * count_, same);
  }

  void top_k(const char* name, std::int64_t k) {
    select(
        name,
        [&](const tutti::Selected& to) {
          tutti::cuda::select_top_k(floats(gradient_), nullptr, count_, k, to, scratch_);
        },
        [&](tutti::Selector& selector) {
          return selector.top_k(std::span<const float>(values_), k);
        });
  }

  /** Makes the gradient another one, of these elements. */
  template <class Element>
  void fill(const Element& element) {
    for (std::size_t i = 0; i < values_.size(); ++i) values_[i] = element(i);
    gpu_.stream().copy(gradient_.view(DType::f32), std::span<const float>(values_)).wait();
  }

  void sort() {
    tutti::bench::PairSort pairs(count_);
    const double us =
        gpu_.median_us(std::min(runs_, 5), [&] { pairs.run(floats(gradient_), gpu_.native()); });
    print("cub_sort_pairs", us, 4 * count_);
  }

  std::int64_t count_;
  int runs_;
  std::string out_;  // a folder, or empty
  std::vector<float> values_;
  Gpu gpu_;
  tutti::cuda::Scratch scratch_{gpu_.stream()};
  Buffer gradient_;
  Buffer other_;
  Buffer third_;
  double copy_bandwidth_ = 1.0;
  double read_us_ = 0.0;
  bool good_ = true;
};

int name_devices() {
  for (int i = 0; i < tutti::gpu_count(); ++i) {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
    std::printf("%s, compute capability %d.%d, %zu MiB\n", properties.name, properties.major,
                properties.minor, properties.totalGlobalMem >> 20U);
  }
  return 0;
}

int run(int argc, char** argv) {
  std::int64_t count = std::int64_t{64} << 20;
  int runs = 21;
  bool devices = false;
  std::string out;
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--devices") == 0) {
      devices = true;
    } else if (has_value && std::strcmp(argv[i], "--n") == 0) {
      count = tutti::bench::number_of<std::int64_t>("--n", argv[++i], 1024, tutti::kMostSelectable);
    } else if (has_value && std::strcmp(argv[i], "--runs") == 0) {
      runs = tutti::bench::number_of("--runs", argv[++i], 1);
    } else if (has_value && std::strcmp(argv[i], "--out") == 0) {
      out = argv[++i];
    } else {
      std::fprintf(stderr,
                   "usage: gpu_kernels_bench [--n N] [--runs R] [--out FOLDER] | --devices\n");
      return 2;
    }
  }
  if (tutti::gpu_count() == 0) {
    std::fprintf(stderr, "no GPU\n");
    return kNoGpu;
  }
  if (devices) return name_devices();
  return Bench(count, runs, out).run() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_kernels_bench: %s\n", error.what());
    return 1;
  }
}
