// What the benchmarks of collectives are told on the command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tutti/dtype.hpp"

namespace tutti::bench {

/** Where the data of a collective lies. */
enum class Buffers { arena, private_memory };

/** "arena" or "private". */
const char* name_of(Buffers buffers);

struct Options {
  std::vector<std::int64_t> sizes{8, 512, 4 << 10, 64 << 10, 1 << 20};  ///< bytes of a buffer
  std::vector<Buffers> buffers{Buffers::arena, Buffers::private_memory};
  DType dtype = DType::f32;
  std::vector<std::string> peers{"mpi"};  ///< rivals: see make_peer()
  double seconds = 1.0;                   ///< for each line of the table, at least five rounds
  std::string json;                       ///< file to write JSON Lines to; empty: none
};

/** Reads `--sizes 8,4K,1M --buffers arena,private --dtype f32 --peers mpi,gloo --seconds S
 * --json FILE`, all optional, over `options`. Throws InvalidArgument. */
Options parse_options(int argc, char** argv, Options options = {});

/** "8", "4K", "16M". */
std::string size_text(std::int64_t bytes);

}  // namespace tutti::bench
