// The modes of DistOpt as docs/numerics.md has them, written down plainly.
#include "rig/training.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>

#include "rig/oracle.hpp"
#include "support/data.hpp"

namespace tutti::test {
namespace {

constexpr double kDensity = 0.05;
// Every parameter is a bucket and a partition of its own.
constexpr std::int64_t kOneEach = 1;

std::vector<std::size_t> unsigned_sizes(const std::vector<std::int64_t>& sizes) {
  return {sizes.begin(), sizes.end()};
}

/** The elements that are sent: those of largest magnitude, the first among equals; or all that
 * reach the threshold. */
std::vector<std::size_t> selected(const std::vector<float>& from, bool top_k, float threshold) {
  std::vector<std::size_t> order(from.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (top_k) {
    std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::abs(from[a]) > std::abs(from[b]);
    });
    order.resize(static_cast<std::size_t>(std::ceil(kDensity * static_cast<double>(from.size()))));
  } else {
    std::erase_if(order, [&](std::size_t i) { return std::abs(from[i]) < threshold; });
  }
  return order;
}

}  // namespace

Training::Training(const Trial& trial, const std::shared_ptr<Communicator>& world)
    : ranks_(world->world_size()),
      rank_(world->global_rank()),
      sizes_(trial.parameters),
      values_(unsigned_sizes(sizes_), 1.0F),
      own_(unsigned_sizes(sizes_)),
      optimizer_(std::make_shared<Descent>(), world) {
  Replica replica;
  replica.values = values_.arrays;
  replica.residuals = own_.arrays;  // zeros
  replicas_.assign(static_cast<std::size_t>(ranks_), replica);
  optimizer_.register_parameters(values_.parameters());
}

float Training::gradient(std::uint64_t number, int rank, std::size_t parameter,
                         std::int64_t i) const {
  const int salt = static_cast<int>(number % 1'000'000) * 16 + rank;
  const std::int64_t at = i + static_cast<std::int64_t>(parameter) * 1'000'003;
  return static_cast<float>((scrambled(salt, at, 17) - 8) * ranks_);
}

std::vector<Training::Vectors> Training::gradients(std::uint64_t number) const {
  std::vector<Vectors> all;
  for (int rank = 0; rank < ranks_; ++rank) {
    Vectors& vectors = all.emplace_back();
    for (std::size_t p = 0; p < sizes_.size(); ++p) {
      std::vector<float>& vector = vectors.emplace_back(static_cast<std::size_t>(sizes_[p]));
      for (std::size_t i = 0; i < vector.size(); ++i) {
        vector[i] = gradient(number, rank, p, static_cast<std::int64_t>(i));
      }
    }
  }
  return all;
}

void Training::step(DistMode mode, std::uint64_t number) {
  const auto all = gradients(number);
  own_.arrays = all[static_cast<std::size_t>(rank_)];
  const Backward backward = [&](const Emit& emit) {
    for (std::size_t p = sizes_.size(); p-- > 0;) {
      if (interruption && p == sizes_.size() / 2) interruption();
      emit(values_.view(p), own_.view(p));
    }
  };
  switch (mode) {
    case DistMode::full:
      optimizer_.backward_and_update(backward, number % 2 == 0 ? kOneEach : 10'000);
      break;
    case DistMode::half:
      optimizer_.backward_and_update_half(backward, number % 2 == 0 ? kOneEach : 10'000);
      break;
    case DistMode::partial:
      optimizer_.backward_and_partial_update(backward, kOneEach);
      break;
    case DistMode::top_k:
    case DistMode::threshold: {
      const bool top_k = mode == DistMode::top_k;
      optimizer_.backward_and_sparse_update(backward, kOneEach, top_k ? kDensity : threshold(),
                                            top_k);
      break;
    }
    case DistMode::custom:
      throw WrongResult("a trial has no compressor of its own");
  }
  if (mode == DistMode::partial) {
    simulate_partial(all);
  } else {
    simulate_averages(all, mode);
  }
  const Vectors& expected = replicas_[static_cast<std::size_t>(rank_)].values;
  for (std::size_t p = 0; p < sizes_.size(); ++p) {
    const auto [at, other] =
        std::mismatch(expected[p].begin(), expected[p].end(), values_.arrays[p].begin());
    if (at == expected[p].end()) continue;
    throw WrongResult("element " + std::to_string(at - expected[p].begin()) + " of parameter " +
                      std::to_string(p) + " is " + std::to_string(*other) + " instead of " +
                      std::to_string(*at));
  }
}

void Training::simulate_averages(const std::vector<Vectors>& gradients, DistMode mode) {
  const bool is_sparse = mode == DistMode::top_k || mode == DistMode::threshold;
  for (std::size_t p = 0; p < sizes_.size(); ++p) {
    std::vector<float> sum(static_cast<std::size_t>(sizes_[p]));
    for (std::size_t r = 0; r < replicas_.size(); ++r) {
      const std::vector<float>& gradient = gradients[r][p];
      std::vector<float>& residual = replicas_[r].residuals[p];
      if (!is_sparse) {
        for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
        continue;
      }
      for (std::size_t i = 0; i < sum.size(); ++i) residual[i] += gradient[i];
      for (const std::size_t i : selected(residual, mode == DistMode::top_k, threshold())) {
        sum[i] += residual[i];
        residual[i] = 0;
      }
    }
    for (Replica& replica : replicas_) {
      for (std::size_t i = 0; i < sum.size(); ++i) {
        replica.values[p][i] -= sum[i] / static_cast<float>(ranks_);
      }
    }
  }
}

void Training::simulate_partial(const std::vector<Vectors>& gradients) {
  for (std::size_t r = 0; r < replicas_.size(); ++r) {
    for (std::size_t p = 0; p < sizes_.size(); ++p) {
      for (std::size_t i = 0; i < gradients[r][p].size(); ++i) {
        replicas_[r].values[p][i] -= gradients[r][p][i];
      }
    }
  }
  // The last parameter comes first in memory.
  const std::size_t p = sizes_.size() - 1 - partition_++ % sizes_.size();
  for (std::size_t i = 0; i < replicas_[0].values[p].size(); ++i) {
    float sum = 0;
    for (const Replica& replica : replicas_) sum += replica.values[p][i];
    for (Replica& replica : replicas_) replica.values[p][i] = sum / static_cast<float>(ranks_);
  }
}

}  // namespace tutti::test
