// What a communicator among several hosts takes of a rank's memory, by the number of ranks.
//
//     mpiexec -n 32 build/release/bin/memory_bench [RANKS]
//
// RANKS of them in a row pretend to share a host (1 unless told). Of the rank that takes most, in
// KiB: of the heap, of data (VmData) and of what is resident (VmRSS), that the first communicator
// has made more once it was used, with the session and MPI's connections, and that a second one
// makes more.
#include <malloc.h>
#include <mpi.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <string>

#include "support/numbers.hpp"
#include "tutti/communicator.hpp"

namespace {

using tutti::Communicator;
using tutti::DType;
using tutti::View;

/** In KiB: heap, data, resident. */
using Memory = std::array<std::int64_t, 3>;

std::int64_t status_of(const std::string& name) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line)) {
    if (line.starts_with(name + ":")) return std::atoll(line.c_str() + name.size() + 1);
  }
  return 0;
}

Memory memory() {
  const struct mallinfo2 info = mallinfo2();
  const auto heap = static_cast<std::int64_t>((info.uordblks + info.hblkhd) / 1024);
  return {heap, status_of("VmData"), status_of("VmRSS")};
}

/** Once each way of the short collectives, and what connects all leaders. */
void use(Communicator& communicator) {
  std::array<float, 2> data{1, 1};
  const View view(data.data(), 2, DType::f32);
  for (int i = 0; i < 3; ++i) {
    communicator.all_reduce(view);
    communicator.broadcast(view, 0);
    communicator.barrier();
  }
}

void print_growth(const char* what, const Memory& before, const Memory& after) {
  Memory growth{};
  for (std::size_t i = 0; i < growth.size(); ++i) growth[i] = after[i] - before[i];
  Memory most{};
  MPI_Allreduce(growth.data(), most.data(), 3, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  if (rank != 0) return;
  std::printf("%-22s %10lld %10lld %10lld\n", what, static_cast<long long>(most[0]),
              static_cast<long long>(most[1]), static_cast<long long>(most[2]));
}

}  // namespace

int main(int argc, char** argv) try {
  const int ranks = argc > 1 ? tutti::bench::number_of("RANKS", argv[1], 1) : 1;
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  setenv("TUTTI_HOST_ID", std::to_string(rank / ranks).c_str(), 1);
  MPI_Barrier(MPI_COMM_WORLD);
  {
    const Memory before = memory();
    Communicator first;
    use(first);
    const Memory between = memory();
    first.barrier();
    Communicator second;
    use(second);
    const Memory after = memory();
    if (rank == 0) {
      std::printf("%d ranks, %d on a host       heap       data   resident (KiB)\n", size, ranks);
    }
    print_growth("first communicator", before, between);
    print_growth("second communicator", between, after);
    second.barrier();
  }
  MPI_Finalize();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "memory_bench: %s\n", error.what());
  return 1;
}
