// Patterns: small whole numbers, exact in every type and order of additions.
#include "rig/oracle.hpp"

#include <algorithm>
#include <cstring>

#include "support/data.hpp"

namespace tutti::test {
namespace {

/** The number under which `rank`'s contribution to a step goes in data.hpp. */
int number_of(std::uint64_t salt, int rank) {
  return static_cast<int>(salt % 1'000'000) * 16 + rank;
}

}  // namespace

template <class Value>
Pattern::Pattern(DType dtype, const Value& value)
    : dtype_(dtype), elements_(static_cast<std::size_t>(kPeriod * size_of(dtype))) {
  fill({elements_.data(), kPeriod, dtype}, value);
}

Pattern Pattern::contribution(DType dtype, ReduceKind kind, std::uint64_t salt, int rank) {
  return {dtype, Contribution{dtype, kind, number_of(salt, rank)}};
}

Pattern Pattern::reduced(DType dtype, const Reduce& reduce, std::uint64_t salt, int ranks) {
  return {dtype, Reduced{dtype, reduce, ranks, 0, number_of(salt, 0)}};
}

template <class Visit>
void Pattern::pieces(std::int64_t begin, std::int64_t count, const Visit& visit) const {
  for (std::int64_t done = 0; done < count;) {
    const std::int64_t from = (begin + done) % kPeriod;
    const std::int64_t piece = std::min(count - done, kPeriod - from);
    visit(done, elements_.data() + from * size_of(dtype_),
          static_cast<std::size_t>(piece * size_of(dtype_)));
    done += piece;
  }
}

void Pattern::write(const View& out, std::int64_t begin) const {
  pieces(begin, out.count, [&](std::int64_t at, const std::byte* elements, std::size_t bytes) {
    std::memcpy(out.part(at, 0).data, elements, bytes);
  });
}

void Pattern::check(const ConstView& view, const std::string& name, std::int64_t begin) const {
  pieces(begin, view.count, [&](std::int64_t at, const std::byte* elements, std::size_t bytes) {
    const ConstView part = view.part(at, static_cast<std::int64_t>(bytes) / size_of(dtype_));
    if (std::memcmp(part.data, elements, bytes) == 0) return;
    // Zeros of the other sign are equal, too.
    const auto result = holds(part, [&](std::int64_t i) {
      return dispatch(dtype_, [&](auto zero) {
        decltype(zero) element;
        std::memcpy(&element, elements + i * size_of(dtype_), sizeof element);
        return number(element);
      });
    });
    if (!result) {
      throw WrongResult(name + " from element " + std::to_string(at) + " of " +
                        std::to_string(view.count) + " on: " + result.message());
    }
  });
}

}  // namespace tutti::test
