// A table as it should be: a map of rows, changed one after the other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "comm/shm/memory/segment.hpp"
#include "ps/table/initial.hpp"
#include "ps/table/rules.hpp"
#include "ps/table/table.hpp"
#include "tutti/unique_id.hpp"

namespace tutti::ps::test {

using Floats = std::vector<float>;
using Ids = std::vector<std::int64_t>;

inline std::string new_segment() { return shm::segment_name(UniqueId::create(), "table"); }

class TableOracle {
 public:
  explicit TableOracle(TableIdentity identity)
      : identity_(std::move(identity)), kernel_(identity_.spec.rule) {}

  Floats row(std::int64_t id) const {
    const auto dim = static_cast<std::size_t>(identity_.spec.dim);
    if (identity_.spec.padding_idx == id) return Floats(dim);
    if (const auto found = rows_.find(id); found != rows_.end()) return found->second.weights;
    Floats weights(dim);
    fill_initial(identity_.spec.initial, identity_.seed, id, identity_.spec.dim, weights.data());
    return weights;
  }
  Floats rows(const Ids& ids) const {
    Floats result;
    for (const std::int64_t id : ids) {
      const Floats weights = row(id);
      result.insert(result.end(), weights.begin(), weights.end());
    }
    return result;
  }

  void update(const Ids& ids, const Floats& gradients, float scale) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (identity_.spec.padding_idx == ids[i]) continue;
      Row& row = touch(ids[i]);
      kernel_.apply(row.weights.data(), row.state.data(), gradients.data() + i * row.weights.size(),
                    identity_.spec.dim, scale);
    }
  }
  void add(const Ids& ids, const Floats& deltas, float scale) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (identity_.spec.padding_idx == ids[i]) continue;
      Floats& weights = touch(ids[i]).weights;
      for (std::size_t j = 0; j < weights.size(); ++j) {
        weights[j] += scale * deltas[i * weights.size() + j];
      }
    }
  }

  std::size_t size() const { return rows_.size(); }

 private:
  struct Row {
    Floats weights;
    Floats state;
  };

  Row& touch(std::int64_t id) {
    const auto [place, is_new] = rows_.try_emplace(id);
    if (is_new) {
      const std::int64_t dim = identity_.spec.dim;
      place->second.weights.resize(static_cast<std::size_t>(dim));
      fill_initial(identity_.spec.initial, identity_.seed, id, dim, place->second.weights.data());
      place->second.state.resize(static_cast<std::size_t>(state_floats(identity_.spec.rule, dim)));
      kernel_.start(place->second.state.data(), dim);
    }
    return place->second;
  }

  TableIdentity identity_;
  RuleKernel kernel_;
  std::unordered_map<std::int64_t, Row> rows_;
};

}  // namespace tutti::ps::test
