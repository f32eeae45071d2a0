// The cost model.
#include "comm/sparse/plan.hpp"

#include <algorithm>
#include <cstdio>

#include "base/environment.hpp"
#include "tutti/error.hpp"

namespace tutti {
namespace {

// Rough figures of a present core; the wire's is measured.
constexpr double kRound = 50e-6;     // seconds of a message to everybody and its answer
constexpr double kEntry = 4e-9;      // seconds to unpack an element and add it
constexpr double kElement = 0.5e-9;  // seconds to add up a dense element
constexpr double kSpread = 0.15e-9;  // seconds to spread a byte to the ranks of a host
constexpr double kElementBytes = 4.0;

constexpr std::array<SparseAlgorithm, 3> kChoices{SparseAlgorithm::gather, SparseAlgorithm::split,
                                                  SparseAlgorithm::dense};

double& at(std::array<double, 4>& seconds, SparseAlgorithm algorithm) {
  return seconds[static_cast<std::size_t>(algorithm)];
}

}  // namespace

SparsePlan plan_sparse(const SparseTask& task) {
  const auto hosts = static_cast<double>(task.hosts);
  const auto all_entries = static_cast<double>(task.all_entries);
  const auto elements = static_cast<double>(task.count);
  const double others = hosts - 1.0;
  const double entry_bytes = task.most_entries == 0 ? 0.0
                                                    : static_cast<double>(task.most_bytes) /
                                                          static_cast<double>(task.most_entries);
  const double dense_bytes = elements * kElementBytes;
  const double sum_bytes = std::min(task.union_entries * entry_bytes, dense_bytes);
  const auto wire = [&](double bytes) { return bytes * task.seconds_per_byte; };
  const auto spread = [&](double bytes) { return task.ranks > 1 ? bytes * kSpread : 0.0; };

  SparsePlan plan;
  at(plan.seconds, SparseAlgorithm::gather) =
      kRound + wire(others * static_cast<double>(task.most_bytes)) +
      spread(all_entries * entry_bytes) + all_entries * kEntry;
  at(plan.seconds, SparseAlgorithm::split) =
      3.0 * kRound + wire(others / hosts * (static_cast<double>(task.most_bytes) + sum_bytes)) +
      all_entries / hosts * kEntry + spread(sum_bytes) + task.union_entries * kEntry;
  at(plan.seconds, SparseAlgorithm::dense) =
      2.0 * kRound + wire(2.0 * others / hosts * dense_bytes) +
      static_cast<double>(task.most_entries) * kEntry + elements * kElement + spread(dense_bytes);
  plan.algorithm = *std::min_element(kChoices.begin(), kChoices.end(), [&](auto a, auto b) {
    return at(plan.seconds, a) < at(plan.seconds, b);
  });
  return plan;
}

std::string SparsePlan::describe() const {
  std::string text = std::string(name_of(algorithm)) + " (predicted:";
  for (const SparseAlgorithm choice : kChoices) {
    char time[32];
    std::snprintf(time, sizeof(time), " %.2f ms", 1e3 * seconds[static_cast<std::size_t>(choice)]);
    text += (choice == kChoices.front() ? " " : ", ") + std::string(name_of(choice)) + time;
  }
  return text + ")";
}

std::optional<SparseAlgorithm> forced_sparse_algorithm() {
  const auto text = environment("TUTTI_SPARSE");
  if (!text || *text == "auto") return std::nullopt;
  for (const SparseAlgorithm choice : kChoices) {
    if (*text == name_of(choice)) return choice;
  }
  throw InvalidArgument("TUTTI_SPARSE is '" + *text +
                        "', but must be auto, gather, split or dense");
}

}  // namespace tutti
