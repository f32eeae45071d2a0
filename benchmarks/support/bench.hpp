// A benchmark of collectives on this host, beside other libraries and beside what memory allows.
#pragma once

#include <vector>

#include "support/call.hpp"

namespace tutti::bench {

/**
 * The main() of such a benchmark, under mpiexec: times `ops` for every size and kind of memory, and
 * prints a table and, with --json, JSON Lines. options.hpp tells what it is told, turns.hpp how it
 * is timed.
 *
 * `arena` is memory from Communicator::allocate(), `private` a process' own on huge pages; the
 * peers always work on the latter. The limit is a pass by all ranks over memory of their own that
 * reads and writes the least bytes that the operation makes each of them read and write, with plain
 * stores or past the caches, whichever is faster. Times are medians in microseconds of the slowest
 * rank, bandwidths in GB/s as nccl-tests has them. MPI's own settings (--mca ...) apply to the
 * peer. Returns 0, 1 if a result was wrong, or 2 after an error, which it prints.
 */
int run_benchmark(int argc, char** argv, const std::vector<Op>& ops);

}  // namespace tutti::bench
