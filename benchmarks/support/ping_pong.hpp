// How far apart two cores are.
#pragma once

namespace tutti::bench {

/**
 * The one-way time of a cache line between rank 0 of MPI_COMM_WORLD and the next rank of its host,
 * in nanoseconds; 0 if it is alone there. Collective. Tells near cores (a shared cache: about 50)
 * from far ones (over 200).
 */
double ping_pong_ns();

}  // namespace tutti::bench
