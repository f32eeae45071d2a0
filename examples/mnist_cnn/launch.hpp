// Ranks that are forked children of this program.
#pragma once

#include <functional>

namespace mnist {

/**
 * Forks `ranks` children; each runs `rank_main(rank)` and exits with what it returns. Waits for
 * all of them, says which were killed by a signal, and returns 0 if all returned 0, else 1. Once
 * one has failed the others have ten seconds to end by themselves. Children die with the parent.
 * Call it before starting threads; OpenBLAS looks after its own.
 */
int launch_ranks(int ranks, const std::function<int(int rank)>& rank_main);

/** Whether what is written to stdout appears on a terminal, on this side of mpiexec too. */
bool stdout_is_terminal();

}  // namespace mnist
