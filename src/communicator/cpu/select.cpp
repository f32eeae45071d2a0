// Selection in one pass: a bound from a sample, the candidates above it, an exact cut among them.
#include "tutti/select.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "communicator/arguments.hpp"
#include "communicator/cpu/cut.hpp"
#include "communicator/cpu/kernels.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

using cpu::Cut;
using cpu::find_cut;
using cpu::kNotFinite;
using cpu::magnitude_of;

constexpr std::int64_t kBlock = 4096;         // elements whose values stay in the first cache
constexpr std::int64_t kMarkBits = 64;        // elements of a word of marks
constexpr std::int64_t kMostSamples = 65536;  // enough to find 0.1 % within a quarter
constexpr std::int64_t kSampled = 16;         // at most every 16th element is sampled
constexpr double kSigmas = 4.0;               // of the sample's error that the bracket allows
constexpr std::int64_t kSlack = 32768;  // candidates that may come beyond twice what is wanted

/** What a call selects from. */
struct Source {
  const float* gradient = nullptr;
  float* residual = nullptr;
  std::int64_t count = 0;

  float value(std::int64_t i) const {
    return residual == nullptr ? gradient[i] : residual[i] + gradient[i];
  }
};

/** Where the k-th largest magnitude probably lies. */
struct Bracket {
  std::uint32_t low = 0;
  std::uint32_t high = kNotFinite;
};

Source check(const ConstView& gradient, const View& residual) {
  check_view("gradient", gradient);
  check_on_cpu("gradient", gradient);
  check_dtype("gradient", gradient, DType::f32);
  if (gradient.count > kMostSparse) {
    throw InvalidArgument("gradient.count is " + std::to_string(gradient.count) +
                          ", but indices have 32 bits");
  }
  const auto* values = static_cast<const float*>(gradient.data);
  if (residual.data == nullptr && residual.count == 0) return {values, nullptr, gradient.count};
  check_view("residual", residual);
  check_on_cpu("residual", residual);
  check_dtype("residual", residual, DType::f32);
  check_count("residual", residual, gradient.count, "as many as gradient");
  check_apart("gradient", gradient, "residual", residual);
  return {values, static_cast<float*>(residual.data), gradient.count};
}

/** The bits of a magnitude; of -0.0 as well. */
std::uint32_t bits_of(float threshold) {
  return std::bit_cast<std::uint32_t>(threshold) & 0x7FFFFFFFU;
}

}  // namespace

/**
 * Candidates are the elements above a lower bound. They are collected block by block: marked by a
 * kernel, then taken out by their marks while the block is in the cache, together with their
 * residual. If there are far too many, the best of them are kept and the bound rises to the worst
 * of those. Whoever is a candidate no longer gets its residual back.
 */
class Selector::Impl {
 public:
  SparseView top_k(const Source& source, std::int64_t k) {
    reserve(source.count);
    if (k == 0) return above(source, kNotFinite);
    const Bracket bracket = guess(source, k);
    collect(source, bracket.low, k);
    if (count_ < k) {  // the sample was no good: begin again, from the sums already made
      for (std::int64_t i = 0; i < count_; ++i) give_back(source, i);
      const bool added = source.residual != nullptr;
      collect({added ? nullptr : source.gradient, source.residual, source.count}, 0, k);
    }
    keep_best(source, k, bracket);
    return result();
  }

  SparseView above(const Source& source, std::uint32_t least) {
    reserve(source.count);
    collect(source, std::min(least, kNotFinite), source.count);
    return result();
  }

 private:
  SparseView result() const { return {indices_.get(), values_.get(), count_}; }

  void reserve(std::int64_t count) {
    if (count <= capacity_) return;
    const auto size = static_cast<std::size_t>(count);
    indices_ = std::make_unique_for_overwrite<std::uint32_t[]>(size);
    values_ = std::make_unique_for_overwrite<float[]>(size);
    const auto samples = static_cast<std::size_t>(std::min(count / kSampled, kMostSamples));
    samples_ = std::make_unique_for_overwrite<float[]>(samples);
    capacity_ = count;
  }

  /** A bracket from a random sample, which a regular pattern in the gradient does not mislead. */
  Bracket guess(const Source& source, std::int64_t k) {
    const std::int64_t count = std::min(source.count / kSampled, kMostSamples);
    std::uint64_t state = 1;
    for (std::int64_t i = 0; i < count; ++i) {
      // Knuth's MMIX generator; the upper half of its state, scaled to the number of elements.
      state = state * 6364136223846793005U + 1442695040888963407U;
      const std::uint64_t at = (state >> 32U) * static_cast<std::uint64_t>(source.count) >> 32U;
      samples_[static_cast<std::size_t>(i)] = source.value(static_cast<std::int64_t>(at));
    }
    const double expected =
        static_cast<double>(k) / static_cast<double>(source.count) * static_cast<double>(count);
    const double error = kSigmas * std::sqrt(expected) + kSigmas;
    const auto low_rank = static_cast<std::int64_t>(expected + error);
    const auto high_rank = static_cast<std::int64_t>(expected - error);
    const std::span<const float> samples(samples_.get(), static_cast<std::size_t>(count));
    Bracket bracket;
    if (low_rank < count) bracket.low = find_cut(samples, low_rank, 0, kNotFinite).magnitude;
    if (high_rank >= 0 && high_rank < count) {
      bracket.high = find_cut(samples, high_rank, bracket.low, kNotFinite).magnitude;
    }
    return bracket;
  }

  /** Collects the candidates from `least` on: all, or if they are many, the best `k` and more. */
  void collect(const Source& source, std::uint32_t least, std::int64_t k) {
    count_ = 0;
    std::int64_t most = 2 * k + kSlack;
    for (std::int64_t begin = 0; begin < source.count; begin += kBlock) {
      const std::int64_t length = std::min(kBlock, source.count - begin);
      const float* gradient = source.gradient == nullptr ? nullptr : source.gradient + begin;
      float* residual = source.residual == nullptr ? nullptr : source.residual + begin;
      cpu::mark(gradient, residual, length, least, marks_.data());
      take_marked(source, begin, length);
      if (count_ <= most) continue;
      const Cut worst = keep_best(source, k, {least, kNotFinite});
      // An equal one that comes later would not be among the best any more.
      least = worst.magnitude == kNotFinite ? kNotFinite : worst.magnitude + 1;
      most = 2 * count_ + kSlack;
    }
  }

  void take_marked(const Source& source, std::int64_t begin, std::int64_t length) {
    const float* values = source.residual == nullptr ? source.gradient : source.residual;
    std::int64_t count = count_;
    for (std::int64_t word = 0; word * kMarkBits < length; ++word) {
      std::uint64_t marks = marks_[static_cast<std::size_t>(word)];
      for (; marks != 0; marks &= marks - 1) {
        const std::int64_t i = begin + word * kMarkBits + std::countr_zero(marks);
        const float value = values[i];
        indices_[static_cast<std::size_t>(count)] = static_cast<std::uint32_t>(i);
        // The payload of a NaN is up to the compiler.
        values_[static_cast<std::size_t>(count)] =
            value == value ? value : std::numeric_limits<float>::quiet_NaN();
        if (source.residual != nullptr) source.residual[i] = 0.0F;
        ++count;
      }
    }
    count_ = count;
  }

  void give_back(const Source& source, std::int64_t candidate) const {
    const auto at = static_cast<std::size_t>(candidate);
    if (source.residual != nullptr) source.residual[indices_[at]] = values_[at];
  }

  /** Keeps the best `k` candidates and gives the others back. Returns where it cut. */
  Cut keep_best(const Source& source, std::int64_t k, const Bracket& bracket) {
    const std::span<const float> values(values_.get(), static_cast<std::size_t>(count_));
    const Cut cut = find_cut(values, k - 1, bracket.low, bracket.high);
    // Of those at the cut, the first ones; but all that are not finite.
    std::int64_t equals = cut.magnitude == kNotFinite ? count_ : k - cut.above;
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < count_; ++i) {
      const auto from = static_cast<std::size_t>(i);
      const std::uint32_t magnitude = magnitude_of(values_[from]);
      const bool equal = magnitude == cut.magnitude;
      if (magnitude > cut.magnitude || (equal && equals > 0)) {
        const auto to = static_cast<std::size_t>(kept++);
        indices_[to] = indices_[from];
        values_[to] = values_[from];
        if (equal) --equals;
      } else {
        give_back(source, i);
      }
    }
    count_ = kept;
    return cut;
  }

  std::unique_ptr<std::uint32_t[]> indices_;
  std::unique_ptr<float[]> values_;
  std::unique_ptr<float[]> samples_;
  std::int64_t capacity_ = 0;
  std::int64_t count_ = 0;
  std::array<std::uint64_t, kBlock / kMarkBits> marks_{};
};

Selector::Selector() : impl_(std::make_unique<Impl>()) {}
Selector::Selector(Selector&&) noexcept = default;
Selector& Selector::operator=(Selector&&) noexcept = default;
Selector::~Selector() = default;

SparseView Selector::top_k(ConstView gradient, std::int64_t k, View residual) {
  const Source source = check(gradient, residual);
  if (k < 0 || k > gradient.count) {
    throw InvalidArgument("k is " + std::to_string(k) + ", but must be from 0 to gradient.count, " +
                          std::to_string(gradient.count));
  }
  return impl_->top_k(source, k);
}

SparseView Selector::above(ConstView gradient, float threshold, View residual) {
  const Source source = check(gradient, residual);
  if (!(threshold >= 0.0F)) {
    throw InvalidArgument("threshold is " + std::to_string(threshold) +
                          ", but must not be negative");
  }
  return impl_->above(source, bits_of(threshold));
}

}  // namespace tutti
