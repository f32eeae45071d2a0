// How gradients are laid out in memory, and which of them travel together.
#include "opt/bucket.hpp"

namespace tutti {

std::vector<std::int64_t> place_gradients(std::span<const ParameterRange> parameters) {
  constexpr std::int64_t kElements = kGradientAlignment / size_of(DType::f32);
  std::vector<std::int64_t> starts{0};
  starts.reserve(parameters.size() + 1);
  for (const ParameterRange& parameter : parameters) {
    const std::int64_t lines = (parameter.count + kElements - 1) / kElements;
    starts.push_back(starts.back() + lines * kElements);
  }
  return starts;
}

std::vector<Bucket> cut_buckets(std::span<const ParameterRange> parameters,
                                std::span<const std::int64_t> starts, std::int64_t bucket_elements,
                                const std::vector<bool>& apart, std::vector<Bucket> buckets) {
  buckets.clear();
  bool follows = false;  // the last bucket, without a gap
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!apart.empty() && apart[i]) {
      follows = false;
      continue;
    }
    const std::int64_t count = parameters[i].count;
    if (!follows || count > bucket_elements - buckets.back().elements) {
      buckets.push_back({i, i, starts[i], starts[i], 0});
    }
    Bucket& bucket = buckets.back();
    bucket.last = i + 1;
    bucket.end = starts[i] + count;
    bucket.elements += count;
    follows = true;
  }
  return buckets;
}

}  // namespace tutti
