// Sparse vectors as dense ones.
#include "communicator/sparse.hpp"

#include <algorithm>
#include <array>

namespace tutti {

std::string_view name_of(SparseAlgorithm algorithm) {
  constexpr std::array<std::string_view, 4> kNames{"none", "gather", "split", "dense"};
  return kNames[static_cast<std::size_t>(algorithm)];
}

void scatter(const SparseView& in, const View& out) {
  auto* elements = static_cast<float*>(out.data);
  std::fill_n(elements, out.count, 0.0F);
  for (std::int64_t i = 0; i < in.count; ++i) elements[in.indices[i]] += in.values[i];
}

std::int64_t count_entries(const ConstView& vector) {
  const auto* elements = static_cast<const float*>(vector.data);
  return vector.count - std::count(elements, elements + vector.count, 0.0F);
}

}  // namespace tutti
