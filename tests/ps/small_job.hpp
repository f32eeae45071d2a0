// A small job with a result that is known exactly, whatever the number of workers and servers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/ps/fleet.hpp"

namespace tutti::ps::test {

inline constexpr std::int64_t kSteps = 6;
inline constexpr std::int64_t kIds = 40;
inline constexpr std::int64_t kDim = 3;

/** A table and two parameters, one of which is cut; all learn with rate 1. */
inline FleetOptions small_job(const Mode& mode) {
  FleetOptions options;
  options.mode = mode;
  options.seed = 7;
  options.timeout = std::chrono::seconds(20);
  TableSpec table;
  table.name = "item";
  table.dim = kDim;
  table.rule = Sgd{1.0F};
  table.initial = Constant{1000.0F};
  options.tables.push_back(table);
  options.slicing.min_block_size = 8;
  for (const auto& [name, rows] : {std::pair{"bias", std::int64_t{1}}, {"weight", 11}}) {
    DenseParameter parameter;
    parameter.name = name;
    parameter.shape = {rows, 4};
    parameter.rule = Sgd{1.0F};
    for (std::int64_t i = 0; i < rows * 4; ++i) {
      parameter.initial.push_back(static_cast<float>(1000 + i));
    }
    options.dense.push_back(parameter);
  }
  return options;
}

/** Id `i` of those that are pushed; some are pushed by all workers, and some twice in a step. */
inline std::int64_t id_at(std::int64_t i) { return i * i * 1'000'003 - 17; }

/** Pushes gradients that are `size` times small integers. */
inline void train(Worker& worker, float size) {
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i < kIds; ++i) ids.push_back(id_at(i));
  ids.push_back(id_at(0));
  const std::vector<float> rows(ids.size() * kDim, size);
  const std::vector<float> bias(4, size);
  const std::vector<float> weight(44, 2 * size);
  for (std::int64_t step = 0; step < kSteps; ++step) {
    worker.push(worker.table("item"), ids, rows);
    worker.push_dense(worker.parameter("bias"), bias);
    worker.push_dense(worker.parameter("weight"), weight);
    worker.step();
  }
}

/** What is wrong with what the servers have when `workers` have each trained with gradients of 1 in
 * all; empty if nothing is. */
inline std::string wrong_results(Worker& worker, int workers) {
  const auto pushed = static_cast<float>(workers * kSteps);
  std::string wrong;
  const auto expect = [&](const char* what, std::int64_t i, float value, float expected) {
    if (value == expected) return;
    wrong += std::string(what) + " " + std::to_string(i) + " is " + std::to_string(value) +
             ", not " + std::to_string(expected) + "\n";
  };
  std::vector<std::int64_t> ids;
  for (std::int64_t i = 0; i <= kIds; ++i) ids.push_back(id_at(i));  // the last is unknown
  std::vector<float> rows(ids.size() * kDim);
  worker.lookup(worker.table("item"), ids, rows);
  for (std::int64_t i = 0; i <= kIds; ++i) {
    const float times = i == 0 ? 2.0F : i == kIds ? 0.0F : 1.0F;
    expect("row", i, rows[static_cast<std::size_t>(i * kDim)], 1000.0F - times * pushed);
  }
  std::vector<float> bias(4);
  worker.pull_dense(worker.parameter("bias"), bias);
  for (std::int64_t i = 0; i < 4; ++i) {
    expect("bias", i, bias[static_cast<std::size_t>(i)], static_cast<float>(1000 + i) - pushed);
  }
  std::vector<float> weight(44);
  worker.pull_dense(worker.parameter("weight"), weight);
  for (std::int64_t i = 0; i < 44; ++i) {
    expect("weight", i, weight[static_cast<std::size_t>(i)],
           static_cast<float>(1000 + i) - 2 * pushed);
  }
  return wrong;
}

/** A worker's whole life; returns what is wrong. In sync mode gradients are divided by the workers'
 * number, so they are as many times as large. */
inline std::string work(Worker& worker, bool divides) {
  train(worker, divides ? static_cast<float>(worker.count()) : 1.0F);
  worker.flush();
  worker.barrier();
  std::string wrong = wrong_results(worker, worker.count());
  worker.barrier();  // nobody leaves before all have looked
  worker.stop();
  return wrong;
}

}  // namespace tutti::ps::test
