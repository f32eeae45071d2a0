// All-reduce on this host, beside other libraries and beside what memory allows.
//
//   mpiexec -n 2 --bind-to core allreduce_bench [--sizes 8,4K,1M] [--buffers arena,private]
//       [--dtype f32] [--peers mpi,gloo] [--seconds S] [--json FILE]
//
// In place, over the ranks of MPI_COMM_WORLD; support/bench.hpp tells what the table shows.
#include "support/bench.hpp"

int main(int argc, char** argv) {
  return tutti::bench::run_benchmark(argc, argv, {tutti::bench::Op::all_reduce});
}
