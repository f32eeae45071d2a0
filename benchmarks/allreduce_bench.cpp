// All-reduce on this host, beside other libraries and beside what memory allows.
//
//   mpiexec -n 2 --bind-to core allreduce_bench [--sizes 8,4K,1M] [--buffers arena,private]
//       [--dtype f32] [--peers mpi,gloo] [--seconds S] [--json FILE]
//
// In place, over the ranks of MPI_COMM_WORLD; support/turns.hpp tells how it is timed. `arena` is
// memory from Communicator::allocate(), `private` a process' own on huge pages; the peers always
// work on the latter. The limit is a pass by all ranks over the same memory that reads and writes
// every byte once: in place, nothing moves less. Times are medians in microseconds of the slowest
// rank, bandwidths in GB/s as nccl-tests has them. MPI's own settings (--mca ...) apply to the
// peer.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "communicator/cpu/kernels.hpp"
#include "peers/peer.hpp"
#include "support/memory.hpp"
#include "support/options.hpp"
#include "support/ping_pong.hpp"
#include "support/turns.hpp"
#include "tutti/communicator.hpp"

namespace tutti::bench {
namespace {

/** A line of the table, in microseconds; nothing where a peer was not asked for. */
struct Line {
  std::int64_t bytes = 0;
  Buffers buffers = Buffers::arena;
  double us = 0;
  double limit_us = 0;
  std::optional<double> mpi_us;
  std::optional<double> gloo_us;
};

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {
    for (const std::string& name : options_.peers) peers_.push_back({name, make_peer(name)});
    pingpong_ns_ = ping_pong_ns();
    if (comm_.global_rank() != 0) return;
    if (!options_.json.empty()) {
      json_.reset(std::fopen(options_.json.c_str(), "w"));
      if (!json_) throw InvalidArgument("--json is '" + options_.json + "': cannot be written");
    }
    std::printf("all_reduce, %s, %d ranks, in place; a cache line crosses in %.0f ns\n",
                name_of(options_.dtype).data(), comm_.world_size(), pingpong_ns_);
    std::printf("%6s %8s %11s %8s %8s %11s %6s %11s %6s %11s %6s\n", "size", "buffers", "us",
                "algbw", "busbw", "limit_us", "ratio", "mpi_us", "x", "gloo_us", "x");
  }

  /** False if a result was wrong. */
  bool run() {
    for (const std::int64_t bytes : options_.sizes) {
      for (const Buffers buffers : options_.buffers) {
        if (!measure(bytes, buffers)) return false;
      }
    }
    return true;
  }

 private:
  struct NamedPeer {
    std::string name;
    std::unique_ptr<Peer> peer;
  };
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  bool measure(std::int64_t bytes, Buffers buffers) {
    const std::int64_t count = bytes / size_of(options_.dtype);
    const HugeMemory own(bytes);
    const View private_data(own.data(), count, options_.dtype);
    Buffer symmetric;
    View data = private_data;
    if (buffers == Buffers::arena) {
      symmetric = comm_.allocate(bytes);
      data.data = symmetric.data();
    }
    std::vector<Variant> variants;
    variants.push_back({"tutti", data, [=, this] { comm_.all_reduce(data); }, true, true});
    const auto pass = [=] {
      void* const out = data.data;
      const void* const in = data.data;
      cpu::reduce(std::span(&out, 1), std::span(&in, 1), bytes, DType::u8, {});
    };
    variants.push_back({"limit", data, pass, false});
    for (const NamedPeer& each : peers_) {
      for (auto& way : each.peer->all_reduce(private_data)) {
        variants.push_back({each.name, private_data, std::move(way)});
      }
    }
    if (!take_turns(comm_, variants, options_.seconds)) return false;

    Line line{bytes, buffers, median_us(variants[0].seconds), median_us(variants[1].seconds),
              {},    {}};
    for (const Variant& variant : variants) {
      auto& column = variant.name == "mpi" ? line.mpi_us : line.gloo_us;
      if (variant.name != "mpi" && variant.name != "gloo") continue;
      const double us = median_us(variant.seconds);
      column = std::min(us, column.value_or(us));
    }
    if (comm_.global_rank() == 0) print(line);
    return true;
  }

  void print(const Line& line) const {
    const double algbw = static_cast<double>(line.bytes) / line.us * 1e-3;
    const double busbw = algbw * 2 * (comm_.world_size() - 1) / comm_.world_size();
    std::printf("%6s %8s %11.2f %8.2f %8.2f %11.2f %6.2f", size_text(line.bytes).c_str(),
                name_of(line.buffers), line.us, algbw, busbw, line.limit_us,
                line.us / line.limit_us);
    for (const auto& peer : {line.mpi_us, line.gloo_us}) {
      if (peer) {
        std::printf(" %11.2f %6.2f", *peer, *peer / line.us);
      } else {
        std::printf(" %11s %6s", "-", "-");
      }
    }
    std::printf("\n");
    std::fflush(stdout);
    if (!json_) return;
    const auto number = [](const std::optional<double>& value) {
      return value ? std::to_string(*value) : "null";
    };
    std::fprintf(json_.get(),
                 "{\"op\": \"all_reduce\", \"dtype\": \"%s\", \"bytes\": %lld, \"ranks\": %d, "
                 "\"buffers\": \"%s\", \"us\": %.3f, \"mpi_us\": %s, \"gloo_us\": %s, "
                 "\"limit_us\": %.3f, \"pingpong_ns\": %.1f, \"checked\": true}\n",
                 name_of(options_.dtype).data(), static_cast<long long>(line.bytes),
                 comm_.world_size(), name_of(line.buffers), line.us, number(line.mpi_us).c_str(),
                 number(line.gloo_us).c_str(), line.limit_us, pingpong_ns_);
    std::fflush(json_.get());
  }

  Options options_;
  Communicator comm_;
  std::vector<NamedPeer> peers_;
  double pingpong_ns_ = 0;
  std::unique_ptr<std::FILE, Close> json_;
};

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) {
  try {
    const tutti::bench::Options options = tutti::bench::parse_options(argc, argv);
    MPI_Init(nullptr, nullptr);
    const bool ok = tutti::bench::Bench(options).run();
    MPI_Finalize();
    return ok ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised != 0) MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
  }
}
