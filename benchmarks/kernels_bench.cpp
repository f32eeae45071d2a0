// How near the CPU kernels come to the speed of memory: reductions and optimisers, on one core.
//
//   kernels_bench [--json]
//
// Arrays of 32 MiB lie in main memory, those of 64 KiB in the second-level cache. GB/s count what
// a kernel reads and writes; its first input is also its output, as in an all-reduce in place.
// Every result is checked. Medians of interleaved runs; reading and copying are for comparison.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "device/cpu/kernel_table.hpp"
#include "device/elementwise.hpp"
#include "tutti/dtype.hpp"

namespace {

using tutti::DType;
using tutti::cpu::Isa;
using tutti::cpu::KernelTable;

constexpr int kRuns = 5;
constexpr int kArrays = 4;

struct Place {
  const char* name;
  std::int64_t bytes;  // of an array
  int repeats;         // of a kernel in one measurement
};
constexpr Place kPlaces[] = {{"memory", 32LL << 20U, 1}, {"cache", 64LL << 10U, 200}};

struct Case {
  std::string isa;
  std::string kernel;
  std::int64_t arrays_moved;  // reads and writes, in arrays
  std::function<void()> prepare;
  std::function<void()> run;
  std::function<bool()> correct;
  std::vector<double> seconds{};
};

/** A cache line, so that arrays start on one. */
struct alignas(64) Line {
  std::uint64_t words[8];
};
using Arrays = std::vector<std::vector<Line>>;

void fill(void* data, std::int64_t count, DType dtype, float value) {
  if (dtype == DType::f32) {
    std::fill_n(static_cast<float*>(data), count, value);
  } else if (dtype == DType::f16) {
    std::fill_n(static_cast<tutti::Half*>(data), count, tutti::to_half(value));
  } else {
    std::fill_n(static_cast<tutti::BFloat16*>(data), count, tutti::to_bfloat16(value));
  }
}

/** Whether all elements are those that fill() writes for `value`. */
bool holds(const void* data, std::int64_t count, DType dtype, float value) {
  std::vector<std::byte> expected(static_cast<std::size_t>(count * tutti::size_of(dtype)));
  fill(expected.data(), count, dtype, value);
  return std::memcmp(data, expected.data(), expected.size()) == 0;
}

Case reduce_case(Isa isa, DType dtype, int inputs, Arrays& arrays, const Place& place) {
  const std::int64_t count = place.bytes / tutti::size_of(dtype);
  std::vector<const void*> ins;
  for (int i = 0; i < inputs; ++i) ins.push_back(arrays[static_cast<std::size_t>(i)].data());
  void* out = arrays[0].data();
  // Inputs of 1, 2, 2, ... and their average, so that a second run starts where the first ended:
  // with the average a of the first input and the others, a' = (a + 2 (inputs - 1)) / inputs.
  float expected = 1.0F;
  for (int i = 0; i < place.repeats; ++i) {
    float sum = expected;
    for (int input = 1; input < inputs; ++input) sum += 2.0F;
    expected = sum / static_cast<float>(inputs);
    if (dtype == DType::f16) expected = tutti::to_float(tutti::to_half(expected));
    if (dtype == DType::bf16) expected = tutti::to_float(tutti::to_bfloat16(expected));
  }
  return {
      tutti::cpu::name_of(isa),
      "reduce " + std::string(tutti::name_of(dtype)) + ", " + std::to_string(inputs) + " inputs",
      inputs + 1,
      [=, &arrays] {
        for (std::size_t i = 0; i < static_cast<std::size_t>(inputs); ++i) {
          fill(arrays[i].data(), count, dtype, i == 0 ? 1.0F : 2.0F);
        }
      },
      [=] {
        tutti::cpu::reduce(tutti::cpu::table(isa), std::span(&out, 1), ins, count, dtype,
                           {.divisor = inputs});
      },
      [=] { return holds(out, count, dtype, expected); }};
}

Case sgd_case(Isa isa, Arrays& arrays, const Place& place) {
  const std::int64_t count = place.bytes / 4;
  auto* parameter = reinterpret_cast<float*>(arrays[0].data());
  auto* gradient = reinterpret_cast<float*>(arrays[1].data());
  auto* velocity = reinterpret_cast<float*>(arrays[2].data());
  const tutti::SgdStep step{.lr = 0.01F, .momentum = 0.9F, .weight_decay = 0.001F};
  float p = 1.0F;
  float m = 0.0F;
  for (int i = 0; i < place.repeats; ++i) {
    m = step.momentum * m + (0.5F + step.weight_decay * p);
    p = p - step.lr * m;
  }
  return {tutti::cpu::name_of(isa),
          "sgd, momentum and decay",
          5,
          [=] {
            fill(parameter, count, DType::f32, 1.0F);
            fill(gradient, count, DType::f32, 0.5F);
            fill(velocity, count, DType::f32, 0.0F);
          },
          [=] { tutti::cpu::table(isa).sgd_update(parameter, gradient, velocity, count, step); },
          [=] {
            return holds(parameter, count, DType::f32, p) && holds(velocity, count, DType::f32, m);
          }};
}

Case adam_case(Isa isa, Arrays& arrays, const Place& place) {
  const std::int64_t count = place.bytes / 4;
  const auto array = [&arrays](std::size_t i) {
    return reinterpret_cast<float*>(arrays[i].data());
  };
  const tutti::AdamPiece piece{array(0), array(1), array(2), array(3), count};
  const tutti::AdamStep step{.correction = {0.01F, 0.5F},
                             .beta1 = 0.9F,
                             .beta2 = 0.999F,
                             .eps = 1e-8F,
                             .weight_decay = 0.001F};
  tutti::AdamElement<float> expected{1.0F, 0.0F, 0.0F};
  for (int i = 0; i < place.repeats; ++i) {
    expected = tutti::adam_moments(expected, 0.5F, step);
    expected.parameter = tutti::adam_parameter(expected, std::sqrt(expected.second), step);
  }
  return {tutti::cpu::name_of(isa),
          "adam, decay",
          7,
          [=] {
            fill(piece.parameter, count, DType::f32, 1.0F);
            fill(array(1), count, DType::f32, 0.5F);
            fill(piece.first, count, DType::f32, 0.0F);
            fill(piece.second, count, DType::f32, 0.0F);
          },
          [=] { tutti::cpu::table(isa).adam_update(piece, step); },
          [=] {
            return holds(piece.parameter, count, DType::f32, expected.parameter) &&
                   holds(piece.first, count, DType::f32, expected.first) &&
                   holds(piece.second, count, DType::f32, expected.second);
          }};
}

Case adagrad_case(Isa isa, Arrays& arrays, const Place& place) {
  const std::int64_t count = place.bytes / 4;
  const auto array = [&arrays](std::size_t i) {
    return reinterpret_cast<float*>(arrays[i].data());
  };
  const tutti::AdagradPiece piece{array(0), array(1), array(2), count};
  const tutti::AdagradStep step{.rate = 0.01F, .eps = 1e-10F, .weight_decay = 0.001F};
  float p = 1.0F;
  float sum = 0.0F;
  for (int i = 0; i < place.repeats; ++i) {
    const float g = tutti::decayed_gradient(0.5F, p, 1.0F, step.weight_decay);
    sum = sum + g * g;
    p = tutti::adagrad_parameter(p, g, std::sqrt(sum), step);
  }
  return {tutti::cpu::name_of(isa),
          "adagrad, decay",
          5,
          [=] {
            fill(piece.parameter, count, DType::f32, 1.0F);
            fill(array(1), count, DType::f32, 0.5F);
            fill(piece.sum, count, DType::f32, 0.0F);
          },
          [=] { tutti::cpu::table(isa).adagrad_update(piece, step); },
          [=] {
            return holds(piece.parameter, count, DType::f32, p) &&
                   holds(piece.sum, count, DType::f32, sum);
          }};
}

std::vector<Case> cases(Arrays& arrays, const Place& place) {
  const std::size_t lines = static_cast<std::size_t>(place.bytes) / sizeof(Line);
  const auto mark = [&arrays, lines] {
    std::fill_n(arrays[0].begin(), lines, Line{{3, 3, 3, 3, 3, 3, 3, 3}});
  };
  static volatile std::uint64_t total = 0;  // keeps the reads
  std::vector<Case> result;
  result.push_back({"-", "read", 1, mark,
                    [=, &arrays] {
                      Line sums{};
                      for (std::size_t i = 0; i < lines; ++i) {
                        for (std::size_t j = 0; j < 8; ++j) sums.words[j] += arrays[0][i].words[j];
                      }
                      total = 0;
                      for (const std::uint64_t sum : sums.words) total = total + sum;
                    },
                    [=] { return total == std::uint64_t{24} * lines; }});
  result.push_back({"-", "copy", 2, mark,
                    [=, &arrays] { std::copy_n(arrays[0].begin(), lines, arrays[1].begin()); },
                    [=, &arrays] {
                      return std::memcmp(arrays[1].data(), arrays[0].data(),
                                         lines * sizeof(Line)) == 0;
                    }});
  for (const Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (tutti::cpu::find_table(isa) == nullptr) continue;
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
      for (const int inputs : {2, 4}) {
        result.push_back(reduce_case(isa, dtype, inputs, arrays, place));
      }
    }
    result.push_back(sgd_case(isa, arrays, place));
    result.push_back(adam_case(isa, arrays, place));
    result.push_back(adagrad_case(isa, arrays, place));
  }
  return result;
}

/** Time that this thread has run for: what else the machine does counts less. */
double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

/** Runs all cases `kRuns` times in turn; false if a result was wrong. */
bool measure(std::vector<Case>& cases, const Place& place) {
  for (int run = 0; run < kRuns; ++run) {
    for (Case& c : cases) {
      c.prepare();
      const double start = cpu_seconds();
      for (int i = 0; i < place.repeats; ++i) c.run();
      c.seconds.push_back((cpu_seconds() - start) / place.repeats);
      if (run == 0 && !c.correct()) {
        std::fprintf(stderr, "wrong result: %s, %s\n", c.isa.c_str(), c.kernel.c_str());
        return false;
      }
    }
  }
  return true;
}

double gigabytes_per_second(Case& c, const Place& place) {
  std::nth_element(c.seconds.begin(), c.seconds.begin() + kRuns / 2, c.seconds.end());
  return static_cast<double>(c.arrays_moved * place.bytes) / c.seconds[kRuns / 2] * 1e-9;
}

}  // namespace

int main(int argc, char** argv) {
  const bool json = argc == 2 && std::strcmp(argv[1], "--json") == 0;
  if (argc > 1 && !json) {
    std::fprintf(stderr, "usage: %s [--json]\n", argv[0]);
    return 2;
  }
  const std::size_t lines = static_cast<std::size_t>(kPlaces[0].bytes) / sizeof(Line);
  Arrays arrays(kArrays, std::vector<Line>(lines));
  for (const Place& place : kPlaces) {
    std::vector<Case> all = cases(arrays, place);
    if (!measure(all, place)) return 1;
    if (!json) std::printf("\n%-10s %-26s GB/s in %s\n", "isa", "kernel", place.name);
    for (Case& c : all) {
      const char* format =
          json ? "{\"isa\": \"%s\", \"kernel\": \"%s\", \"gb_per_s\": %.1f, \"place\": \"%s\"}\n"
               : "%-10s %-26s %6.1f\n";
      std::printf(format, c.isa.c_str(), c.kernel.c_str(), gigabytes_per_second(c, place),
                  place.name);
    }
  }
  return 0;
}
