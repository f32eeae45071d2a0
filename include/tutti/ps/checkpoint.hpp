// What a checkpoint of a parameter server holds.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tutti::ps {

/** A table, or a dense parameter, of all servers together. */
struct CheckpointTable {
  std::string name;
  std::string rule;      ///< by which it was trained, with its options
  std::int64_t dim = 0;  ///< elements of a row
  std::int64_t rows = 0;
  std::int64_t bytes = 0;  ///< of rows and the rule's state
};

/** What inspect_checkpoint() finds. */
struct CheckpointContents {
  int servers = 0;         ///< that have written it
  std::int64_t round = 0;  ///< in sync mode: rounds that had been applied
  std::vector<CheckpointTable> tables;
  std::vector<CheckpointTable> dense;  ///< parameters: rows are elements
};

/** Reads all of a checkpoint. Throws InvalidArgument naming the file for one that is damaged or cut
 * short; SystemError. */
CheckpointContents inspect_checkpoint(const std::string& folder);

}  // namespace tutti::ps
