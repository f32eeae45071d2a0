// A plain model of DistOpt's sparse modes, which every rank runs for all ranks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

#include "multirank/dist_opt_model.hpp"

namespace tutti::test {

/** The gradient of parameter i in `step` on `rank`: whole numbers, whose sums are exact. */
inline std::vector<float> sparse_gradient(std::size_t i, std::size_t size, int step, int rank) {
  std::vector<float> gradient(size);
  for (std::size_t j = 0; j < size; ++j) {
    const std::size_t mixed = (i * 131 + j * 37 + static_cast<std::size_t>(step) * 53 +
                               static_cast<std::size_t>(rank) * 17) %
                              97;
    gradient[j] = 12.0F * (static_cast<float>(mixed) - 48.0F);
  }
  return gradient;
}

/** What the replicas and the residuals should be, element by element. */
class SparseModel {
 public:
  SparseModel(std::vector<std::size_t> sizes, int ranks, float momentum = 0.0F)
      : sizes_(std::move(sizes)),
        momentum_(momentum),
        parameters_(sizes_, 0.0F),
        residuals_(static_cast<std::size_t>(ranks), Values(sizes_, 0.0F)),
        velocities_(residuals_) {}

  /** Lists of parameters that share a bucket, in the order of their gradients: last first. */
  using Buckets = std::vector<std::vector<std::size_t>>;

  /** One step; `gradients[rank]`. Each element counts as sent or as kept. */
  void step(const std::vector<Values>& gradients, const Buckets& buckets, double spars, bool top_k,
            bool correct = true) {
    sent_.assign(residuals_.size(), 0);
    Values sum(sizes_, 0.0F);
    for (std::size_t rank = 0; rank < residuals_.size(); ++rank) {
      for (const std::vector<std::size_t>& bucket : buckets) {
        std::vector<float*> elements;  // of the bucket: what may be sent
        std::vector<float*> velocities;
        std::vector<float*> sums;
        Values now = gradients[rank];
        for (const std::size_t i : bucket) {
          for (std::size_t j = 0; j < sizes_[i]; ++j) {
            float& velocity = velocities_[rank].arrays[i][j];
            float& element = correct ? residuals_[rank].arrays[i][j] : now.arrays[i][j];
            velocity = momentum_ * velocity + gradients[rank].arrays[i][j];
            if (correct) element += velocity;
            elements.push_back(&element);
            velocities.push_back(&velocity);
            sums.push_back(&sum.arrays[i][j]);
          }
        }
        for (const std::size_t place : chosen(elements, spars, top_k)) {
          *sums[place] += *elements[place];
          *elements[place] = 0.0F;
          *velocities[place] = 0.0F;
          ++sent_[rank];
        }
      }
    }
    for (std::size_t i = 0; i < sizes_.size(); ++i) {
      for (std::size_t j = 0; j < sizes_[i]; ++j) {
        parameters_.arrays[i][j] -= sum.arrays[i][j] / static_cast<float>(residuals_.size());
      }
    }
  }

  const Values& parameters() const { return parameters_; }
  std::int64_t sent(int rank) const { return sent_[static_cast<std::size_t>(rank)]; }

 private:
  static std::vector<std::size_t> chosen(const std::vector<float*>& elements, double spars,
                                         bool top_k) {
    std::vector<std::size_t> order(elements.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto magnitude = [&](std::size_t place) { return std::fabs(*elements[place]); };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return magnitude(a) > magnitude(b); });
    std::size_t count = 0;
    if (top_k) {
      count = static_cast<std::size_t>(std::ceil(spars * static_cast<double>(order.size())));
    } else {
      while (count < order.size() && double{magnitude(order[count])} >= spars) ++count;
    }
    order.resize(count);
    return order;
  }

  std::vector<std::size_t> sizes_;
  float momentum_;
  Values parameters_;
  std::vector<Values> residuals_;
  std::vector<Values> velocities_;
  std::vector<std::int64_t> sent_;
};

}  // namespace tutti::test
