// Which ids get a row.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "tutti/ps/table.hpp"

namespace tutti::ps {

/**
 * Decides for ids that have no row. Counts lie in a sketch of bounded memory (count-min, Cormode
 * and Muthukrishnan 2005): an id may be admitted too early, never too late. Not thread-safe.
 */
class Admission {
 public:
  Admission(const Entry& entry, std::uint64_t seed);
  Admission(const Admission&) = delete;
  Admission& operator=(const Admission&) = delete;
  Admission(Admission&&) noexcept;
  Admission& operator=(Admission&&) noexcept;
  ~Admission();

  /** So many calls of admits() take no memory. Throws std::bad_alloc. */
  void make_room(std::int64_t pushes);
  /** Counts a push for `id`, with what was shown and clicked, and tells whether it gets a row now.
   */
  bool admits(std::int64_t id, float shows, float clicks);
  /** Whether that is so without a look. */
  bool admits_all() const;
  std::int64_t bytes() const;

  // For files.

  /** What has been counted; empty if the rule counts nothing. */
  std::span<const double> counts() const;
  /** Whether these can be counts that somebody has saved. */
  static bool are_counts(std::span<const double> counts);
  /** Goes on with the counts of another server besides those here: no id's is less than in either.
   * Throws InvalidArgument if these are none. */
  void merge(std::span<const double> counts);

 private:
  class Sketch;
  Entry entry_;
  std::uint64_t seed_;
  std::unique_ptr<Sketch> sketch_;
};

}  // namespace tutti::ps
