// Reductions among many hosts whose results are exact.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "tutti/dtype.hpp"
#include "tutti/transport.hpp"

namespace tutti::test {

/** A reduction with an exact result in every type, which is what so many hosts may add up to. */
struct ExactCase {
  DType dtype;
  Reduce reduce;
  std::int64_t count;

  /** What a host brings. */
  std::vector<std::byte> of(int host) const;
  /** What so many hosts get. */
  std::vector<double> results(int hosts) const;
  /** Whether `data` are these `results`. */
  ::testing::AssertionResult holds_in(std::span<const std::byte> data,
                                      std::span<const double> results) const;
  /** Type, kind and count, to be shown. */
  std::string text() const;

 private:
  bool is_sum() const;
  bool is_product() const;
  /** Of a host, from `begin` on. */
  void values(int host, std::int64_t begin, std::span<double> into) const;
  void compute_results(int hosts, std::int64_t begin, std::span<double> into) const;
};

}  // namespace tutti::test
