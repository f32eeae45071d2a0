// What tutti adds to NCCL: all_reduce through a Communicator beside the bare call that blocks.
//
//   mpiexec -n N gpu_allreduce_bench [--seconds S]
//
// Prints a JSON line for each size: microseconds an operation where many are launched one after the
// other, median of turns on the slowest rank; `enqueue_us` until a call of tutti's has returned,
// `enqueue_added_us` more than until a bare one has, medians of all calls but the first of each
// turn, for which threads wake up and caches are filled: `first_us` and `first_added_us` are those.
// `gpus`: how many the ranks have together. Every turn ends with a check of the average
// (`checked`). Status 77 without a GPU, 1 if a result is wrong.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "comm/nccl/library.hpp"
#include "device/cuda.hpp"
#include "support/turns.hpp"
#include "tutti/communicator.hpp"

namespace {

using Clock = std::chrono::steady_clock;
using tutti::DType;
using tutti::Reduce;
using tutti::Stream;
using tutti::View;

constexpr int kNoGpu = 77;
constexpr std::int64_t kSizes[]{4, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20};

/** A communicator of NCCL alone, as NCCL makes it unless it is told otherwise: its calls block. */
class Bare {
 public:
  Bare(tutti::Communicator& comm, int ordinal)
      : nccl_(tutti::nccl::Library::open()), ordinal_(ordinal) {
    ncclUniqueId id{};
    if (comm.global_rank() == 0) check(nccl_->GetUniqueId(&id));
    comm.broadcast(View(&id, sizeof(id), DType::u8), 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    tutti::cuda::with_device(ordinal, [&] {
      check(
          nccl_->CommInitRankConfig(&handle_, comm.world_size(), id, comm.global_rank(), &config));
    });
  }
  Bare(const Bare&) = delete;
  Bare& operator=(const Bare&) = delete;
  ~Bare() {
    tutti::cuda::with_device(ordinal_, [&] { nccl_->CommDestroy(handle_); });
  }

  void all_reduce(const View& data, const Stream& stream) const {
    check(nccl_->AllReduce(data.data, data.data, static_cast<std::size_t>(data.count), ncclFloat32,
                           ncclAvg, handle_, static_cast<cudaStream_t>(stream.native())));
  }

 private:
  void check(ncclResult_t result) const {
    if (result != ncclSuccess) throw tutti::Error(nccl_->GetErrorString(result));
  }

  std::shared_ptr<const tutti::nccl::Library> nccl_;
  int ordinal_;
  ncclComm_t handle_ = nullptr;
};

class Bench {
 public:
  Bench()
      : ordinal_(comm_.device().ordinal), gpus_(count_gpus()), stream_(Stream::on(comm_.device())) {
    // Beyond the calls that are compared between the ranks, and until everything is connected.
    // Before the bare communicator: where ranks share a GPU this sets NCCL's host ids, which NCCL
    // reads once.
    const tutti::Buffer memory = comm_.allocate(4, stream_.device());
    for (int i = 0; i < 200; ++i) comm_.all_reduce(memory.view(DType::f32), Reduce::sum, stream_);
    stream_.submit([] {}).wait();
    bare_.emplace(comm_, ordinal_);
  }

  /** Until calls have returned, in seconds. */
  struct Returned {
    std::vector<double> first;  // of each turn
    std::vector<double> later;
  };

  bool run(std::int64_t bytes, double seconds) {
    const std::int64_t count = bytes / 4;
    // Registered with neither communicator.
    const tutti::Buffer memory = stream_.allocate(bytes);
    const View data = memory.view(DType::f32);
    std::vector<float> values(static_cast<std::size_t>(count));
    std::vector<double> through;
    std::vector<double> alone;
    Returned enqueueing;
    Returned enqueueing_alone;
    bool good = true;
    const auto turn = [&](std::vector<double>& times, Returned& returned,
                          const std::function<void()>& call) {
      const int loops = bytes > (4 << 20) ? 5 : 50;
      const auto rank = static_cast<float>(comm_.global_rank());
      std::fill(values.begin(), values.end(), rank + 1.0F);
      stream_.copy(data, std::span<const float>(values)).wait();
      comm_.barrier();
      const auto start = Clock::now();
      auto before = start;
      for (int i = 0; i < loops; ++i) {
        call();
        const auto after = Clock::now();
        (i == 0 ? returned.first : returned.later)
            .push_back(std::chrono::duration<double>(after - before).count());
        before = after;
      }
      stream_.submit([] {}).wait();
      times.push_back(std::chrono::duration<double>(Clock::now() - start).count() / loops);
      stream_.copy(std::span<float>(values), data).wait();
      // The first operation makes the average, which the others keep, but for their rounding.
      const float expected = static_cast<float>(comm_.world_size() + 1) / 2.0F;
      good = good && std::all_of(values.begin(), values.end(), [&](float value) {
               return std::abs(value - expected) <= 1e-4F * expected;
             });
    };
    const auto end = Clock::now() + std::chrono::duration<double>(seconds);
    std::int32_t more = 1;
    while (more != 0) {
      turn(alone, enqueueing_alone, [&] { bare_->all_reduce(data, stream_); });
      turn(through, enqueueing, [&] { comm_.all_reduce(data, Reduce::average, stream_); });
      more = alone.size() < 5 || Clock::now() < end ? 1 : 0;
      comm_.broadcast(std::span(&more, 1), 0);
    }
    const bool all_good = all(good);
    const double first = tutti::bench::median_us(enqueueing.first);
    const double later = tutti::bench::median_us(enqueueing.later);
    print({bytes, slowest(tutti::bench::median_us(through)),
           slowest(tutti::bench::median_us(alone)), slowest(later),
           slowest(later - tutti::bench::median_us(enqueueing_alone.later)), slowest(first),
           slowest(first - tutti::bench::median_us(enqueueing_alone.first)), all_good});
    return all_good;
  }

 private:
  /** How many different GPUs the ranks have. */
  int count_gpus() {
    tutti::cuda::Uuid own = tutti::cuda::uuid_of(ordinal_);
    std::vector<tutti::cuda::Uuid> all(static_cast<std::size_t>(comm_.world_size()));
    const auto bytes = [](void* data, std::size_t gpus) {
      return View(data, static_cast<std::int64_t>(gpus * sizeof(tutti::cuda::Uuid)), DType::u8);
    };
    comm_.all_gather(bytes(&own, 1), bytes(all.data(), all.size()));
    return static_cast<int>(std::set<tutti::cuda::Uuid>(all.begin(), all.end()).size());
  }
  double slowest(double value) {
    comm_.all_reduce(std::span(&value, 1), Reduce::max);
    return value;
  }
  bool all(bool good) {
    std::int32_t every = good ? 1 : 0;
    comm_.all_reduce(std::span(&every, 1), Reduce::min);
    return every != 0;
  }
  /** On the slowest rank each, in microseconds. */
  struct Row {
    std::int64_t bytes;
    double through, alone, later, later_added, first, first_added;
    bool good;
  };
  void print(const Row& row) const {
    if (comm_.global_rank() != 0) return;
    std::printf(
        "{\"all_reduce_bytes\": %lld, \"world_size\": %d, \"gpus\": %d, \"tutti_us\": %.2f, "
        "\"nccl_us\": %.2f, \"enqueue_us\": %.2f, \"enqueue_added_us\": %.2f, "
        "\"first_us\": %.2f, \"first_added_us\": %.2f, \"checked\": %s}\n",
        static_cast<long long>(row.bytes), comm_.world_size(), gpus_, row.through, row.alone,
        row.later, row.later_added, row.first, row.first_added, row.good ? "true" : "false");
    std::fflush(stdout);
  }

  tutti::Communicator comm_;
  int ordinal_;
  int gpus_;
  Stream stream_;
  std::optional<Bare> bare_;
};

int run(int argc, char** argv) {
  double seconds = 1.0;
  if (argc == 3 && std::strcmp(argv[1], "--seconds") == 0) {
    seconds = std::atof(argv[2]);
  } else if (argc != 1) {
    std::fprintf(stderr, "usage: gpu_allreduce_bench [--seconds S]\n");
    return 2;
  }
  if (tutti::gpu_count() == 0) {
    std::fprintf(stderr, "no GPU\n");
    return kNoGpu;
  }
  Bench bench;
  bool good = true;
  for (const std::int64_t bytes : kSizes) good = bench.run(bytes, seconds) && good;
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_allreduce_bench: %s\n", error.what());
    return 1;
  }
}
