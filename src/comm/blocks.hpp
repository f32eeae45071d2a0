// Operations that move blocks between ranks, whichever they are: what goes where.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tutti/call.hpp"
#include "tutti/transport.hpp"

namespace tutti {

/**
 * The blocks of one rank in a gather, a scatter or an all_to_all, with or without counts: to and
 * from each rank, some of them empty. What a rank has for itself is the block to and from it.
 */
struct Blocks {
  std::vector<ConstView> to;
  std::vector<View> from;

  Blocks(const Call& call, int rank, int size);
};

/** The longest block between any two ranks, in elements, if all ranks know it: not that of an
 * all_to_all_v. */
std::int64_t longest_block(const Call& call);

/** What the ranks of an all_to_all_v have told each other. */
struct AgreedCounts {
  std::int64_t longest = 0;             ///< block between any two
  std::optional<std::string> mismatch;  ///< the first two ranks that do not fit, for the error
};
/** Collective: compares what each rank sends with what the other expects. */
AgreedCounts compare_counts(Transport& transport, const Call& call);

/**
 * A scan or exscan, after the ranks have agreed on it: every rank gathers the contributions, some
 * at a time, and combines those before it in rank order, whichever host they are of. So a result
 * is rounded once.
 */
void scan_gathered(Transport& transport, const Call& call);

}  // namespace tutti
