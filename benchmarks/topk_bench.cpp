// What an exact top-K costs on one core, in passes over the gradient.
//
//   topk_bench [--n N] [--density D,D,...] [--gradient normal|tailed] [--runs R]
//
// Prints a JSON line for each density: `us` is the selection alone, beside a pass that reads the
// gradient (`read_pass_us`); `feedback_us` the selection with error feedback, beside a plain
// residual += gradient (`add_pass_us`); `nth_element_us` the standard library's way. Medians of
// interleaved runs. `checked`: indices, values and residual are those of a full sort.
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "support/numbers.hpp"
#include "tutti/error.hpp"
#include "tutti/select.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using Floats = std::vector<float>;
using Indices = std::vector<std::uint32_t>;

struct Options {
  std::int64_t count = 16 << 20;
  std::vector<double> densities{0.001, 0.01};
  bool tailed = true;
  int runs = 9;
};

/** Normal, or its cube: gradients have heavy tails. */
Floats make_gradient(const Options& options, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Floats gradient(static_cast<std::size_t>(options.count));
  for (float& value : gradient) {
    const float a = normal(random);
    value = (options.tailed ? a * a * a : a) * 1e-3F;
  }
  return gradient;
}

double microseconds(const std::function<void()>& action) {
  const auto start = Clock::now();
  action();
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

volatile std::uint32_t sink = 0;  // keeps the reads

/** Reads everything, in sums that do not wait for each other. */
void read_pass(const Floats& gradient) {
  constexpr std::size_t kSums = 64;
  std::uint32_t sums[kSums] = {};
  const float* data = gradient.data();
  for (std::size_t i = 0; i + kSums <= gradient.size(); i += kSums) {
    for (std::size_t j = 0; j < kSums; ++j) sums[j] ^= std::bit_cast<std::uint32_t>(data[i + j]);
  }
  sink = sink ^ std::accumulate(sums, sums + kSums, 0U);
}

void add_pass(Floats& residual, const Floats& gradient) {
  float* to = residual.data();
  const float* from = gradient.data();
  for (std::size_t i = 0; i < residual.size(); ++i) to[i] += from[i];
}

Indices by_magnitude(std::size_t count) {
  Indices order(count);
  std::iota(order.begin(), order.end(), 0U);
  return order;
}

auto larger(const Floats& values) {
  return [&values](std::uint32_t a, std::uint32_t b) {
    const float x = std::abs(values[a]);
    const float y = std::abs(values[b]);
    return x > y || (x == y && a < b);
  };
}

/** What a full sort selects from `values`, which becomes the residual. */
bool is_head_of_sort(const tutti::SparseView& selected, Floats& values, std::int64_t k) {
  Indices order = by_magnitude(values.size());
  std::sort(order.begin(), order.end(), larger(values));
  order.resize(static_cast<std::size_t>(k));
  std::sort(order.begin(), order.end());
  if (selected.count != k) return false;
  if (!std::equal(order.begin(), order.end(), selected.indices)) return false;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (values[order[i]] != selected.values[i]) return false;
    values[order[i]] = 0.0F;
  }
  return true;
}

bool correct(tutti::Selector& selector, const Floats& gradient, Floats residual, std::int64_t k) {
  Floats sum = gradient;
  if (!is_head_of_sort(selector.top_k(std::span(gradient), k), sum, k)) return false;
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = residual[i] + gradient[i];
  const auto selected = selector.top_k(std::span(gradient), k, std::span(residual));
  return is_head_of_sort(selected, sum, k) && residual == sum;
}

bool measure(const Options& options, double density) {
  const Floats gradient = make_gradient(options, 1);
  const Floats first_residual = make_gradient(options, 2);
  const auto k = static_cast<std::int64_t>(std::ceil(density * static_cast<double>(options.count)));
  tutti::Selector selector;
  const bool checked = correct(selector, gradient, first_residual, k);

  Floats residual = first_residual;
  Floats sums = first_residual;
  std::vector<double> read, alone, feedback, add, nth;
  for (int run = 0; run < options.runs; ++run) {
    read.push_back(microseconds([&] { read_pass(gradient); }));
    alone.push_back(microseconds([&] { selector.top_k(std::span(gradient), k); }));
    add.push_back(microseconds([&] { add_pass(sums, gradient); }));
    feedback.push_back(
        microseconds([&] { selector.top_k(std::span(gradient), k, std::span(residual)); }));
    if (run < 3) {
      Indices order = by_magnitude(gradient.size());
      nth.push_back(microseconds([&] {
        std::nth_element(order.begin(), order.begin() + (k - 1), order.end(), larger(gradient));
      }));
    }
  }
  std::printf(
      "{\"n\": %lld, \"density\": %g, \"us\": %.0f, \"read_pass_us\": %.0f, \"feedback_us\": %.0f, "
      "\"add_pass_us\": %.0f, \"nth_element_us\": %.0f, \"checked\": %s}\n",
      static_cast<long long>(options.count), density, median(alone), median(read), median(feedback),
      median(add), median(nth), checked ? "true" : "false");
  std::fflush(stdout);
  return checked;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw tutti::InvalidArgument(name + " has no value");
    const std::string value = argv[i + 1];
    if (name == "--n") {
      options.count = tutti::bench::count_of(name, value);
    } else if (name == "--runs") {
      options.runs = tutti::bench::number_of(name, value, 1);
    } else if (name == "--gradient") {
      if (value != "normal" && value != "tailed") {
        throw tutti::InvalidArgument("--gradient has '" + value +
                                     "', but must be normal or tailed");
      }
      options.tailed = value == "tailed";
    } else if (name == "--density") {
      options.densities.clear();
      std::istringstream list(value);
      for (std::string one; std::getline(list, one, ',');) {
        options.densities.push_back(tutti::bench::positive_of(name, one, 1.0));
      }
      if (options.densities.empty()) throw tutti::InvalidArgument("--density has no value");
    } else {
      throw tutti::InvalidArgument("unknown option " + name);
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    bool good = true;
    for (const double density : options.densities) good = measure(options, density) && good;
    return good ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr,
                 "topk_bench: %s\n"
                 "usage: topk_bench [--n N] [--density D,D,...] [--gradient normal|tailed] "
                 "[--runs R]\n",
                 error.what());
    return 2;
  }
}
