// What every rank brings to a step and what must come out, computed without tutti's arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "tutti/dtype.hpp"
#include "tutti/transport.hpp"

namespace tutti::test {

/** A result that is not what it must be. */
class WrongResult : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/**
 * Vectors of any length that repeat after a prime number of elements, so that filling and comparing
 * them costs as much as copying, and what ends up at a wrong place is seen as long as it is not off
 * by a multiple of that.
 */
class Pattern {
 public:
  static constexpr std::int64_t kPeriod = 4093;

  /** What `rank` contributes; different for each `salt`. */
  static Pattern contribution(DType dtype, ReduceKind kind, std::uint64_t salt, int rank);
  /** What the reduction over `ranks` ranks is. */
  static Pattern reduced(DType dtype, const Reduce& reduce, std::uint64_t salt, int ranks);

  /** out = elements `begin`, begin + 1, ... */
  void write(const View& out, std::int64_t begin = 0) const;
  /** Throws WrongResult, which calls the view `name`, unless it holds them. */
  void check(const ConstView& view, const std::string& name, std::int64_t begin = 0) const;

 private:
  template <class Value>
  Pattern(DType dtype, const Value& value);
  template <class Visit>
  void pieces(std::int64_t begin, std::int64_t count, const Visit& visit) const;

  DType dtype_;
  std::vector<std::byte> elements_;
};

}  // namespace tutti::test
