// Computes what hosts bring, and its results, many at a time.
#include "simulation/exact_case.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "support/data.hpp"

namespace tutti::test {

bool ExactCase::is_sum() const {
  return dtype != DType::boolean &&
         (reduce.kind == ReduceKind::sum || reduce.kind == ReduceKind::average ||
          reduce.kind == ReduceKind::premul_sum);
}

bool ExactCase::is_product() const {
  return dtype != DType::boolean && reduce.kind == ReduceKind::product;
}

void ExactCase::values(int host, std::int64_t begin, std::span<double> into) const {
  if (!is_sum() && !is_product()) {
    return Contribution{dtype, reduce.kind, host}.compute(begin, into);
  }
  const bool adds = is_sum();
  for (std::size_t k = 0; k < into.size(); ++k) {
    const std::int64_t i = begin + static_cast<std::int64_t>(k);
    into[k] = adds ? scrambled(host, i, 2) : (host + i) % 8 == 0 ? 2 : 1;
  }
}

void ExactCase::compute_results(int hosts, std::int64_t begin, std::span<double> into) const {
  if (!is_sum() && !is_product()) return Reduced{dtype, reduce, hosts}.compute(begin, into);
  std::array<double, kStretch> memory;
  const std::span<double> others = std::span(memory).first(into.size());
  values(0, begin, into);
  for (int host = 1; host < hosts; ++host) {
    values(host, begin, others);
    for (std::size_t k = 0; k < into.size(); ++k) {
      into[k] = is_sum() ? into[k] + others[k] : into[k] * others[k];
    }
  }
  for (double& value : into) {
    if (reduce.kind != ReduceKind::average) {
      value *= reduce.factor;
    } else if (is_integer(dtype)) {
      value = std::trunc(value / hosts);
    } else if (dtype == DType::f64) {
      value /= hosts;
    } else {
      value = static_cast<double>(static_cast<float>(value) / static_cast<float>(hosts));
    }
  }
}

std::vector<std::byte> ExactCase::of(int host) const {
  struct Values {
    const ExactCase& what;
    int host;
    void compute(std::int64_t begin, std::span<double> into) const {
      what.values(host, begin, into);
    }
  };
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * size_of(dtype)));
  fill(View(bytes.data(), count, dtype), Values{*this, host});
  return bytes;
}

std::vector<double> ExactCase::results(int hosts) const {
  std::vector<double> all(static_cast<std::size_t>(count));
  for (std::int64_t begin = 0; begin < count; begin += kStretch) {
    const auto length = static_cast<std::size_t>(std::min(kStretch, count - begin));
    compute_results(hosts, begin, std::span(all).subspan(static_cast<std::size_t>(begin), length));
  }
  return all;
}

::testing::AssertionResult ExactCase::holds_in(std::span<const std::byte> data,
                                               std::span<const double> results) const {
  if (std::ssize(results) != count || std::ssize(data) != count * size_of(dtype)) {
    return ::testing::AssertionFailure() << data.size() << " bytes and " << results.size()
                                         << " results of " << count << " elements";
  }
  return are(ConstView(data.data(), count, dtype), 0, results);
}

std::string ExactCase::text() const {
  return std::string(name_of(dtype)) + " " + std::string(name_of(reduce.kind)) + " " +
         std::to_string(count);
}

}  // namespace tutti::test
