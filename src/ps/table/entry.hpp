// Which ids get a row.
#pragma once

#include <cstdint>
#include <memory>

#include "tutti/ps/table.hpp"

namespace tutti::ps {

/**
 * Decides for ids that have no row. Counts lie in a sketch of bounded memory (count-min, Cormode
 * and Muthukrishnan 2005): an id may be admitted too early, never too late. Not thread-safe.
 */
class Admission {
 public:
  Admission(const Entry& entry, std::uint64_t seed);
  Admission(Admission&&) noexcept;
  Admission& operator=(Admission&&) noexcept;
  ~Admission();

  /** Counts a push for `id`, with what was shown and clicked, and tells whether it gets a row now.
   */
  bool admits(std::int64_t id, float shows, float clicks);
  /** Whether that is so without a look. */
  bool admits_all() const;
  std::int64_t bytes() const;

 private:
  class Sketch;
  Entry entry_;
  std::uint64_t seed_;
  std::unique_ptr<Sketch> sketch_;
};

}  // namespace tutti::ps
