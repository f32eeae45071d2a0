// Times tutti, its peers and the limit in turns, and prints the table.
#include "support/bench.hpp"

#include <mpi.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "device/cpu/kernels.hpp"
#include "peers/peer.hpp"
#include "support/memory.hpp"
#include "support/operands.hpp"
#include "support/options.hpp"
#include "support/ping_pong.hpp"
#include "support/turns.hpp"
#include "tutti/communicator.hpp"
#include "tutti/output_file.hpp"

namespace tutti::bench {
namespace {

/** A line of the table, in microseconds; nothing where a peer was not asked or cannot. */
struct Line {
  Op op = Op::all_reduce;
  std::int64_t bytes = 0;
  Buffers buffers = Buffers::arena;
  std::optional<double> us;
  std::optional<double> limit_us;
  std::optional<double> mpi_us;
  std::optional<double> gloo_us;

  /** Where the times of a variant belong. */
  std::optional<double>& column(const std::string& name) {
    if (name == "mpi") return mpi_us;
    if (name == "gloo") return gloo_us;
    return name == "limit" ? limit_us : us;
  }
};

/** What memory allows: see run_benchmark(). Whatever is not the call's own is read from `other`,
 * which is as large as the larger side of the call. */
std::function<void()> limit_of(const Call& call, const void* other, bool streamed, int rank,
                               int ranks) {
  const std::int64_t bytes = call.out.bytes();
  void* out = call.out.data;
  switch (call.op) {
    case Op::all_reduce:
      return [=] {
        const void* const in = out;
        cpu::reduce(std::span(&out, 1), std::span(&in, 1), bytes, DType::u8, {},
                    {streamed ? 0 : cpu::Stores::kAll});
      };
    case Op::reduce_scatter:
      return [=, in = static_cast<const std::byte*>(call.in.data)] {
        std::vector<const void*> blocks;
        for (int block = 0; block < ranks; ++block) blocks.push_back(in + block * bytes);
        cpu::reduce(std::span(&out, 1), blocks, call.out.count, call.out.dtype, {},
                    {streamed ? 0 : cpu::Stores::kAll});
      };
    case Op::broadcast:
      if (rank == 0) return [] {};
      break;
    case Op::reduce:
    case Op::barrier:
      return [] {};
    case Op::all_gather:
    case Op::all_to_all:
    case Op::broadcast_round:
      break;
  }
  return [=] { cpu::copy(out, other, bytes, streamed); };
}

double bus_factor(Op op, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (op == Op::broadcast) return 1;
  return op == Op::all_reduce ? 2 * others : others;
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {
    for (const std::string& name : options_.peers) peers_.push_back({name, make_peer(name)});
    pingpong_ns_ = ping_pong_ns();
    if (comm_.global_rank() != 0 || options_.json.empty()) return;
    json_.emplace(options_.json);
    json_->commit();
  }

  /** False if a result was wrong. */
  bool run(Op op) {
    if (comm_.global_rank() == 0) print_head(op);
    for (const std::int64_t bytes : options_.sizes) {
      for (const Buffers buffers : options_.buffers) {
        if (!measure(op, bytes, buffers)) return false;
      }
    }
    return true;
  }

 private:
  struct NamedPeer {
    std::string name;
    std::unique_ptr<Peer> peer;
  };

  bool measure(Op op, std::int64_t wanted, Buffers buffers) {
    const int ranks = comm_.world_size();
    const std::int64_t bytes = rounded_bytes(op, options_.dtype, wanted, ranks);
    const Operands own(comm_, Buffers::private_memory, op, bytes);
    std::optional<Operands> arena;
    if (buffers == Buffers::arena) arena.emplace(comm_, buffers, op, bytes);
    const HugeMemory other(op == Op::all_reduce ? 1 : bytes);
    const Call private_call = own.call(op, options_.dtype, bytes, ranks);
    const Call call = arena ? arena->call(op, options_.dtype, bytes, ranks) : private_call;

    std::vector<Variant> variants;
    variants.push_back({"tutti", call, way_of_tutti(comm_, call), true, true});
    for (const bool streamed : {false, true}) {
      variants.push_back({"limit", call,
                          limit_of(call, other.data(), streamed, comm_.global_rank(), ranks),
                          false});
    }
    for (const NamedPeer& each : peers_) {
      for (auto& [algorithm, run] : each.peer->ways(private_call)) {
        variants.push_back({each.name, private_call, std::move(run)});
      }
    }
    if (!take_turns(comm_, variants, options_.seconds)) return false;

    Line line{op, bytes, buffers, {}, {}, {}, {}};
    for (const Variant& variant : variants) {
      auto& column = line.column(variant.name);
      const double us = median_us(variant.seconds);
      column = std::min(us, column.value_or(us));
    }
    if (comm_.global_rank() == 0) print(line);
    return true;
  }

  void print_head(Op op) const {
    std::printf("%s, %s, %d ranks, %s; a cache line crosses in %.0f ns\n", name_of(op),
                name_of(options_.dtype).data(), comm_.world_size(),
                is_in_place(op) ? "in place" : "out of place", pingpong_ns_);
    std::printf("%6s %8s %11s %8s %8s %11s %6s %11s %6s %11s %6s\n", "size", "buffers", "us",
                "algbw", "busbw", "limit_us", "ratio", "mpi_us", "x", "gloo_us", "x");
  }

  void print(const Line& line) {
    const double algbw = static_cast<double>(line.bytes) / *line.us * 1e-3;
    const double busbw = algbw * bus_factor(line.op, comm_.world_size());
    std::printf("%6s %8s %11.2f %8.2f %8.2f %11.2f %6.2f", size_text(line.bytes).c_str(),
                name_of(line.buffers), *line.us, algbw, busbw, *line.limit_us,
                *line.us / *line.limit_us);
    for (const auto& peer : {line.mpi_us, line.gloo_us}) {
      if (peer) {
        std::printf(" %11.2f %6.2f", *peer, *peer / *line.us);
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
    std::array<char, 512> text{};
    std::snprintf(text.data(), text.size(),
                  "{\"op\": \"%s\", \"dtype\": \"%s\", \"bytes\": %lld, \"ranks\": %d, "
                  "\"buffers\": \"%s\", \"us\": %.3f, \"mpi_us\": %s, \"gloo_us\": %s, "
                  "\"limit_us\": %.3f, \"pingpong_ns\": %.1f, \"checked\": true}\n",
                  name_of(line.op), name_of(options_.dtype).data(),
                  static_cast<long long>(line.bytes), comm_.world_size(), name_of(line.buffers),
                  *line.us, number(line.mpi_us).c_str(), number(line.gloo_us).c_str(),
                  *line.limit_us, pingpong_ns_);
    json_->write(text.data());
  }

  Options options_;
  Communicator comm_;
  std::vector<NamedPeer> peers_;
  double pingpong_ns_ = 0;
  std::optional<OutputFile> json_;
};

}  // namespace

int run_benchmark(int argc, char** argv, const std::vector<Op>& ops) {
  try {
    const Options options = parse_options(argc, argv);
    MPI_Init(nullptr, nullptr);
    bool ok = true;
    {
      Bench bench(options);
      for (const Op op : ops) ok = ok && bench.run(op);
    }
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

}  // namespace tutti::bench
