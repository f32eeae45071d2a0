// How far apart two cores are.
#pragma once

namespace tutti::bench {

/**
 * The one-way time of a cache line between ranks 0 and 1 of MPI_COMM_WORLD, in nanoseconds; 0 on a
 * single rank. Collective. Tells near cores (a shared cache: about 50) from far ones (over 200).
 */
double ping_pong_ns();

}  // namespace tutti::bench
