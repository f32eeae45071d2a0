// Random changes of inputs, the same ones for the same seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "fuzz/fuzzer.hpp"

namespace tutti::fuzz {

/**
 * Makes inputs from those of a corpus: bits, bytes and whole numbers change, stretches vanish, come
 * twice, or come from another input. Most are mended, so that they get past checksums.
 */
class Mutator {
 public:
  Mutator(std::vector<Input> valid, std::uint64_t seed)
      : corpus_(std::move(valid)), valid_(corpus_.size()), random_(seed) {}

  /** A new input. */
  Input next();
  /** Later inputs may be made from this one, which had an outcome that is new. */
  void learn(const Input& input);

 private:
  std::size_t below(std::size_t limit) { return limit == 0 ? 0 : random_() % limit; }
  bool one_in(std::size_t n) { return below(n) == 0; }
  /** Every other one is valid: most of what was learnt is much alike. */
  const Input& any() { return corpus_[below(one_in(2) ? valid_ : corpus_.size())]; }
  void mutate(Input& input);
  void change_number(Input& input);
  void change_length(Input& input);

  std::vector<Input> corpus_;  // those that are valid first
  std::size_t valid_;
  std::mt19937_64 random_;
};

}  // namespace tutti::fuzz
