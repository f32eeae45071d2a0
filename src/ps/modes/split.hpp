// Which server each of some ids belongs to.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tutti/ps/table.hpp"

namespace tutti::ps {

/** A server's share of a list of ids. */
struct IdShare {
  std::span<const std::int64_t> ids;
  /** Where in the list they stand, ascending; empty if the share is the whole list. */
  std::span<const std::int64_t> positions;
};

/** Cuts a list of ids into shares in one pass, or none where one server has everything: then the
 * share is the caller's list itself. */
class IdSplit {
 public:
  /** `skipped` is left out. */
  IdSplit(std::span<const std::int64_t> ids, Split split, int servers,
          const std::optional<std::int64_t>& skipped);

  IdShare share(int server) const;

 private:
  struct Part {
    std::vector<std::int64_t> ids;
    std::vector<std::int64_t> positions;
  };

  std::span<const std::int64_t> whole_;
  std::vector<Part> parts_;  // none: whole_ is the share of server 0
};

/** to = the rows of `dim` floats at these positions; of no positions: the first `count` rows. */
void gather(const float* from, std::span<const std::int64_t> positions, std::int64_t count,
            std::int64_t dim, float* to);

}  // namespace tutti::ps
