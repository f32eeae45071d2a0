// What memory allows of a table: as many cache lines at known places, without an index or a rule.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ps/beside.hpp"
#include "ps/table/place.hpp"
#include "ps/table/row_access.hpp"

namespace tutti::bench {

/** Rows with state, in memory that forked processes share. A line as of an index has the number of
 * each: two dependent cache misses. */
class BareRows {
 public:
  BareRows(std::size_t rows, std::size_t dim, std::size_t state)
      : rows_(rows),
        dim_(dim),
        state_(state),
        lines_(line_count() * kLine),
        weights_(rows * dim * sizeof(float)),
        states_(std::max<std::size_t>(rows * state, 1) * sizeof(float)) {
    for (std::size_t i = 0; i < line_count(); ++i)
      lines_.as<std::uint32_t>()[i * kNumbers] = static_cast<std::uint32_t>(ps::mix64(i) % rows);
  }

  void read(std::span<const std::int64_t> asked, float* out) const {
    visit(
        asked, [](std::size_t) {},
        [&](std::size_t k, std::size_t row) {
          ps::copy_row(weights(row), out + k * dim_, static_cast<std::int64_t>(dim_));
        });
  }
  /** Adds to all that a row has. */
  void change(std::span<const std::int64_t> asked, float value) const {
    visit(
        asked,
        [&](std::size_t row) { ps::prefetch_row(state(row), static_cast<std::int64_t>(state_)); },
        [&](std::size_t, std::size_t row) {
          for (std::size_t j = 0; j < dim_; ++j) weights(row)[j] += value;
          for (std::size_t j = 0; j < state_; ++j) state(row)[j] += value;
        });
  }

 private:
  static constexpr std::size_t kLine = 64;
  static constexpr std::size_t kNumbers = kLine / sizeof(std::uint32_t);
  static constexpr std::size_t kIndexBytes = 22;  // of a row
  static constexpr std::size_t kAhead = 32;

  std::size_t line_count() const { return rows_ * kIndexBytes / kLine + 1; }
  const std::uint32_t& number(std::int64_t row) const {
    const std::size_t line = static_cast<std::size_t>(row) * line_count() / rows_;
    return lines_.as<std::uint32_t>()[line * kNumbers];
  }
  float* weights(std::size_t row) const { return weights_.as<float>() + row * dim_; }
  float* state(std::size_t row) const { return states_.as<float>() + row * state_; }

  template <class Fetch, class Visit>
  void visit(std::span<const std::int64_t> asked, const Fetch& fetch, const Visit& visit) const {
    for (std::size_t start = 0; start < asked.size(); start += kAhead) {
      const std::size_t end = std::min(asked.size(), start + kAhead);
      for (std::size_t k = start; k < end; ++k) __builtin_prefetch(&number(asked[k]));
      for (std::size_t k = start; k < end; ++k) {
        ps::prefetch_row(weights(number(asked[k])), static_cast<std::int64_t>(dim_));
        fetch(number(asked[k]));
      }
      for (std::size_t k = start; k < end; ++k) visit(k, number(asked[k]));
    }
  }

  std::size_t rows_;
  std::size_t dim_;
  std::size_t state_;
  SharedPages lines_;
  SharedPages weights_;
  SharedPages states_;
};

}  // namespace tutti::bench
