// Random numbers that are the same everywhere: for weights, shuffling and generated digits.
#pragma once

#include <cstdint>

namespace mnist {

/** SplitMix64 (Steele, Lea, Flood 2014). The standard library's distributions differ by vendor. */
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}
  /** A stream of its own for each pair of seed and purpose. */
  Random(std::uint64_t seed, std::uint64_t purpose) : state_(Random(seed).next() + purpose) {
    state_ = next();
  }

  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15U);
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }

  /** In [0, limit), limit > 0 and below 2^32. */
  std::uint32_t below(std::uint32_t limit) {
    return static_cast<std::uint32_t>(((next() >> 32U) * limit) >> 32U);
  }

  /** In [low, high), in steps of 2^-24 of the width. */
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(next() >> 40U) * 0x1p-24F);
  }

 private:
  std::uint64_t state_;
};

}  // namespace mnist
