// Adds up the gradients of ids that come several times.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace tutti::ps {

/**
 * Distinct ids in the order in which they first came, and for each the sum of its rows in the order
 * in which these came: bit for bit the same however the rows were handed over. Keeps its memory.
 */
class Merger {
 public:
  explicit Merger(std::int64_t dim);

  void clear();
  /** Adds a row for each id, and to its shows and clicks where these are given. */
  void add(std::span<const std::int64_t> ids, const float* rows, std::span<const float> shows = {},
           std::span<const float> clicks = {});

  std::span<const std::int64_t> ids() const { return ids_; }
  const float* rows() const { return rows_.data(); }
  /** Null unless some were given. */
  const float* shows() const { return shows_.empty() ? nullptr : shows_.data(); }
  const float* clicks() const { return clicks_.empty() ? nullptr : clicks_.data(); }

 private:
  struct Slot {
    std::int64_t id = 0;
    std::uint32_t place = 0;
    std::uint32_t generation = 0;  ///< before which clear() it was written
  };

  /** Makes room for so many ids. */
  void reserve(std::size_t ids);
  /** Where an id is, or belongs. */
  Slot& slot_of(std::int64_t id);

  std::int64_t dim_;
  std::vector<Slot> slots_;
  std::uint32_t generation_ = 1;
  std::vector<std::int64_t> ids_;
  std::vector<float> rows_;
  std::vector<float> shows_;
  std::vector<float> clicks_;
};

}  // namespace tutti::ps
