// Selection in one pass: a bound from a sample, the candidates above it, an exact cut among them.
#include "tutti/select.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "device/cpu/cut.hpp"
#include "device/cpu/kernels.hpp"
#include "device/views.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

using cpu::Cut;
using cpu::find_cut;
using cpu::kNotFinite;
using cpu::magnitude_of;

constexpr std::int64_t kBlock = 4096;         // elements whose values stay in the first cache
constexpr std::int64_t kMarkBits = 64;        // elements of a word of marks
constexpr std::int64_t kMostSamples = 16384;  // more cost more than the candidates they spare
constexpr std::int64_t kSampled = 16;         // at most every 16th element is sampled
constexpr double kSigmas = 4.0;               // of the sample's error that the bracket allows
constexpr std::size_t kBatch = 512;           // candidates whose losers are given back together
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

/** An element that may be among the k largest. */
struct Candidate {
  std::uint32_t index;
  float value;
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
      give_back_all(source);
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
  SparseView result() {
    for (std::int64_t i = 0; i < count_; ++i) {  // the payload of a NaN is up to the compiler
      float& value = values_[static_cast<std::size_t>(i)];
      value = value == value ? value : std::numeric_limits<float>::quiet_NaN();
    }
    return {indices_.get(), values_.get(), count_};
  }

  void reserve(std::int64_t count) {
    if (count <= capacity_) return;
    const auto size = static_cast<std::size_t>(count) + 1;  // take_word() writes one beyond
    indices_ = std::make_unique_for_overwrite<std::uint32_t[]>(size);
    values_ = std::make_unique_for_overwrite<float[]>(size);
    const auto samples = static_cast<std::size_t>(std::min(count / kSampled, kMostSamples));
    samples_ = std::make_unique_for_overwrite<float[]>(samples);
    capacity_ = count;
  }

  /** A bracket from a sample: an element of each of many equal stretches, at a random place of it,
   * which no pattern in the gradient misleads. */
  Bracket guess(const Source& source, std::int64_t k) {
    const std::int64_t count = std::min(source.count / kSampled, kMostSamples);
    std::uint64_t state = 1;
    for (std::int64_t i = 0; i < count; ++i) {
      // Knuth's MMIX generator; the upper half of its state, scaled to the length of a stretch.
      state = state * 6364136223846793005U + 1442695040888963407U;
      const std::int64_t begin = source.count / count * i;
      const auto length = static_cast<std::uint64_t>(source.count / count);
      const auto offset = static_cast<std::int64_t>((state >> 32U) * length >> 32U);
      samples_[static_cast<std::size_t>(i)] = source.value(begin + offset);
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

  /** Takes out the marked elements, mostly without a branch that depends on how many they are. */
  void take_marked(const Source& source, std::int64_t begin, std::int64_t length) {
    const std::int64_t words = (length + kMarkBits - 1) / kMarkBits;
    std::int64_t filled = 0;  // words with marks
    for (std::int64_t word = 0; word < words; ++word) {
      filled_[static_cast<std::size_t>(filled)] = word;
      filled += marks_[static_cast<std::size_t>(word)] != 0 ? 1 : 0;
    }
    std::int64_t count = count_;
    for (std::int64_t i = 0; i < filled; ++i) {
      const std::int64_t word = filled_[static_cast<std::size_t>(i)];
      const std::uint64_t marks = marks_[static_cast<std::size_t>(word)];
      count = take_word(source, begin + word * kMarkBits, marks, count);
    }
    count_ = count;
  }

  /** Takes out the elements of one word of marks, of which there is one at least, to the places
   * from `count` on; returns where they end. */
  std::int64_t take_word(const Source& source, std::int64_t begin, std::uint64_t marks,
                         std::int64_t count) {
    const std::uint64_t others = marks & (marks - 1);
    const std::int64_t first = begin + std::countr_zero(marks);
    const std::int64_t second = others == 0 ? first : begin + std::countr_zero(others);
    put(source, count, first);
    put(source, count + 1, second);  // to be overwritten if it was the first again
    leave_none(source, first);
    leave_none(source, second);
    count += others == 0 ? 1 : 2;
    for (std::uint64_t rest = others & (others - 1); rest != 0; rest &= rest - 1) {
      const std::int64_t i = begin + std::countr_zero(rest);
      put(source, count++, i);
      leave_none(source, i);
    }
    return count;
  }

  void put(const Source& source, std::int64_t candidate, std::int64_t i) {
    const auto at = static_cast<std::size_t>(candidate);
    indices_[at] = static_cast<std::uint32_t>(i);
    values_[at] = source.residual == nullptr ? source.gradient[i] : source.residual[i];
  }

  static void leave_none(const Source& source, std::int64_t i) {
    if (source.residual != nullptr) source.residual[i] = 0.0F;
  }

  void give_back_all(const Source& source) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(count_); ++i) {
      if (source.residual != nullptr) source.residual[indices_[i]] = values_[i];
    }
  }

  /** Keeps the best `k` candidates and gives the others back. Returns where it cut. */
  Cut keep_best(const Source& source, std::int64_t k, const Bracket& bracket) {
    const std::span<const float> values(values_.get(), static_cast<std::size_t>(count_));
    const Cut cut = find_cut(values, k - 1, bracket.low, bracket.high);
    // Of those at the cut, the first ones; but all that are not finite.
    const bool all = cut.magnitude == kNotFinite;
    const std::size_t turn = all ? values.size() : end_of_equals(values, cut, k - cut.above);
    std::size_t kept = keep(source, {0, turn}, cut.magnitude, 0);
    kept = keep(source, {turn, values.size()}, cut.magnitude + 1, kept);
    count_ = static_cast<std::int64_t>(kept);
    return cut;
  }

  /** Where the first `wanted` values at the cut end. */
  static std::size_t end_of_equals(std::span<const float> values, const Cut& cut,
                                   std::int64_t wanted) {
    const auto is_equal = [&](float value) { return magnitude_of(value) == cut.magnitude; };
    std::size_t end = 0;
    for (; end + kBatch <= values.size(); end += kBatch) {
      const auto batch = values.subspan(end, kBatch);
      const std::int64_t equals = std::count_if(batch.begin(), batch.end(), is_equal);
      if (equals >= wanted) break;
      wanted -= equals;
    }
    while (wanted > 0) wanted -= is_equal(values[end++]) ? 1 : 0;
    return end;
  }

  struct Range {
    std::size_t begin;
    std::size_t end;
  };

  /** Moves the candidates of `range` whose magnitude is at least `least` to the places from `kept`
   * on, and gives the others back. Returns the end of those kept. */
  std::size_t keep(const Source& source, Range range, std::uint32_t least, std::size_t kept) {
    for (std::size_t begin = range.begin; begin < range.end; begin += kBatch) {
      const std::size_t end = std::min(begin + kBatch, range.end);
      std::size_t losers = 0;
      for (std::size_t i = begin; i < end; ++i) {
        const Candidate entry{indices_[i], values_[i]};
        const std::size_t wins = magnitude_of(entry.value) >= least ? 1 : 0;
        losers_[losers] = entry;
        losers += 1 - wins;
        indices_[kept] = entry.index;
        values_[kept] = entry.value;
        kept += wins;
      }
      for (std::size_t i = 0; i < losers && source.residual != nullptr; ++i) {
        source.residual[losers_[i].index] = losers_[i].value;
      }
    }
    return kept;
  }

  std::unique_ptr<std::uint32_t[]> indices_;
  std::unique_ptr<float[]> values_;
  std::unique_ptr<float[]> samples_;
  std::int64_t capacity_ = 0;
  std::int64_t count_ = 0;
  std::array<std::uint64_t, kBlock / kMarkBits> marks_{};
  std::array<std::int64_t, kBlock / kMarkBits> filled_{};
  std::array<Candidate, kBatch> losers_{};
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
