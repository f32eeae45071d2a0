// The other collectives on this host, beside MPI and beside what memory allows: broadcast,
// all_gather, reduce_scatter and all_to_all.
//
//   mpiexec -n 2 --bind-to core collectives_bench [--sizes 8,4K,1M] [--buffers arena,private]
//       [--dtype f32] [--peers mpi] [--seconds S] [--json FILE]
//
// Sizes are those of the larger side of an operation; support/bench.hpp tells what the tables show.
#include "support/bench.hpp"

int main(int argc, char** argv) {
  using tutti::bench::Op;
  return tutti::bench::run_benchmark(
      argc, argv, {Op::broadcast, Op::all_gather, Op::reduce_scatter, Op::all_to_all});
}
