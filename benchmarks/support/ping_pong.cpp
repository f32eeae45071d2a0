// Bounces a counter between two ranks of a host.
#include "support/ping_pong.hpp"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <vector>

namespace tutti::bench {
namespace {

/** The ranks of this rank's host, in their order. */
class Host {
 public:
  Host() {
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &comm_);
    MPI_Comm_rank(comm_, &rank);
    MPI_Comm_size(comm_, &size);
  }
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host() { MPI_Comm_free(&comm_); }
  MPI_Comm comm() const { return comm_; }

  int rank = 0;
  int size = 0;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/** A page that all ranks of a host map. */
class SharedPage {
 public:
  explicit SharedPage(const Host& host) {
    void* own = nullptr;
    MPI_Win_allocate_shared(host.rank == 0 ? 4096 : 0, 1, MPI_INFO_NULL, host.comm(), &own,
                            &window_);
    MPI_Aint bytes = 0;
    int unit = 0;
    MPI_Win_shared_query(window_, 0, &bytes, &unit, &data_);
  }
  SharedPage(const SharedPage&) = delete;
  SharedPage& operator=(const SharedPage&) = delete;
  ~SharedPage() { MPI_Win_free(&window_); }
  void* data() const { return data_; }

 private:
  MPI_Win window_ = MPI_WIN_NULL;
  void* data_ = nullptr;
};

/** `trips` there and back; each rank waits for the other's number and answers with the next. */
void bounce(std::atomic<std::uint32_t>& counter, int rank, std::uint32_t start, int trips) {
  std::uint32_t mine = start + static_cast<std::uint32_t>(rank);
  for (int i = 0; i < trips; ++i, mine += 2) {
    while (counter.load(std::memory_order_acquire) != mine) {
    }
    counter.store(mine + 1, std::memory_order_release);
  }
}

}  // namespace

double ping_pong_ns() {
  constexpr int kTrips = 500;
  constexpr int kRuns = 21;
  const Host host;
  const SharedPage page(host);
  auto& counter = *static_cast<std::atomic<std::uint32_t>*>(page.data());
  if (host.rank == 0) counter.store(0);
  MPI_Barrier(MPI_COMM_WORLD);
  double median = 0;
  if (host.size > 1 && host.rank < 2) {
    std::vector<double> runs;
    for (std::uint32_t run = 0; run < kRuns; ++run) {
      const auto start = std::chrono::steady_clock::now();
      bounce(counter, host.rank, run * 2 * kTrips, kTrips);
      const std::chrono::duration<double, std::nano> spent =
          std::chrono::steady_clock::now() - start;
      runs.push_back(spent.count() / (2 * kTrips));
    }
    std::nth_element(runs.begin(), runs.begin() + kRuns / 2, runs.end());
    median = runs[kRuns / 2];
  }
  MPI_Bcast(&median, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  return median;
}

}  // namespace tutti::bench
