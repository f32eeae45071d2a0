// Collectives between hosts, beside other libraries and beside what the wire allows.
//
//   mpiexec --hostfile FILE cluster_bench [--gbps G]
//       [--ops all_reduce,broadcast,barrier,reduce,all_gather,broadcast_round]
//       [--sizes 8,4K,1M] [--buffers private,arena] [--dtype f32]
//       [--peers openmpi,openmpi-all,gloo,floor] [--seconds S] [--json FILE]
//
// All ways take turns in one run, and every result is verified. Times are medians of the slowest
// rank in microseconds. openmpi is Open MPI's default, rings and pipelines, and han; openmpi-all
// has all algorithms of its component tuned. JSON Lines: for each way hosts, ranks_per_host, bytes
// (of the larger side), op, congestion (what controls that of TCP on rank 0's host), peer (as in
// --peers, or tutti), algorithm, us, wire_us, checked. wire_us is the least time that a full-duplex
// link of G Gbit/s a host needs, null without --gbps: all_reduce sends and receives 2(H-1)/H of the
// bytes on each of H hosts, all_gather (H-1)/H, broadcast and reduce all of them. In a loop of
// broadcasts from one root, ranks that wait for nobody else run ahead of each other. A
// broadcast_round is one from each rank in turn, of what the one before has brought, so that nobody
// can: its times are those of one of them. Where 32-bit floats are summed, so are bf16 of the same
// number beside them (half the bytes). benchmarks/cluster_bench.py runs it on hosts that are
// network namespaces.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "peers/peer.hpp"
#include "support/numbers.hpp"
#include "support/operands.hpp"
#include "support/options.hpp"
#include "support/turns.hpp"
#include "tutti/output_file.hpp"

namespace tutti::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::array<Op, 6> kOps{Op::all_reduce, Op::broadcast,  Op::barrier,
                                 Op::reduce,     Op::all_gather, Op::broadcast_round};

struct ClusterOptions {
  Options common;
  std::vector<Op> ops{kOps.begin(), kOps.end()};
  std::optional<double> gbps;
};

std::vector<Op> parse_ops(const std::string& text) {
  std::vector<Op> ops;
  std::istringstream stream(text);
  for (std::string item; std::getline(stream, item, ',');) {
    const auto* const found =
        std::find_if(kOps.begin(), kOps.end(), [&](Op op) { return item == name_of(op); });
    if (found == kOps.end()) throw InvalidArgument("--ops has '" + item + "'");
    ops.push_back(*found);
  }
  return ops;
}

ClusterOptions parse(int argc, char** argv) {
  ClusterOptions options;
  std::vector<char*> common{argv[0]};
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 < argc && name == "--ops") {
      options.ops = parse_ops(argv[++i]);
    } else if (i + 1 < argc && name == "--gbps") {
      options.gbps = positive_of(name, argv[++i]);
    } else {
      common.push_back(argv[i]);
    }
  }
  options.common.peers = {"openmpi"};
  options.common.buffers = {Buffers::private_memory};
  options.common = parse_options(static_cast<int>(common.size()), common.data(), options.common);
  return options;
}

/** What controls the congestion of this host's connections. */
std::string congestion_control() {
  std::ifstream file("/proc/sys/net/ipv4/tcp_congestion_control");
  std::string name;
  return file >> name ? name : "unknown";
}

/** What a host's link has to carry in either direction, of a call's bytes. */
double share_of_link(Op op, int hosts) {
  const double others = static_cast<double>(hosts - 1) / hosts;
  switch (op) {
    case Op::all_reduce:
      return 2 * others;
    case Op::all_gather:
      return others;
    case Op::barrier:
      return 0;
    default:
      return hosts > 1 ? 1 : 0;
  }
}

/** Whether nobody leaves a barrier before the last has come, as far as this try shows. */
bool holds_back_once(const Variant& barrier) {
  constexpr std::chrono::milliseconds kLate{100};
  int rank = 0;
  int ranks = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int holds = 1;
  for (const int late : {0, ranks - 1}) {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == late) std::this_thread::sleep_for(kLate);
    const auto start = Clock::now();
    barrier.run();
    if (rank != late && Clock::now() - start < kLate / 2) holds = 0;
  }
  MPI_Allreduce(MPI_IN_PLACE, &holds, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  return holds != 0;
}

/** Who has to wait for a core begins too late to see it. */
bool holds_back(const Variant& barrier) {
  for (int time = 0; time < 3; ++time) {
    if (holds_back_once(barrier)) return true;
  }
  std::fprintf(stderr, "no barrier: %s\n", barrier.name.c_str());
  return false;
}

class ClusterBench {
 public:
  explicit ClusterBench(ClusterOptions options)
      : options_(std::move(options)), ranks_per_host_(comm_.local_size()) {
    const std::array<Reduce, 2> bounds{Reduce::min, Reduce::max};
    std::array<int, 2> sizes{ranks_per_host_, ranks_per_host_};
    for (std::size_t i = 0; i < 2; ++i) comm_.all_reduce(std::span(&sizes[i], 1), bounds[i]);
    if (sizes[0] != sizes[1]) throw InvalidArgument("the hosts have different numbers of ranks");
    hosts_ = comm_.world_size() / ranks_per_host_;
    for (const std::string& name : options_.common.peers) peers_.push_back({name, make_peer(name)});
    if (comm_.global_rank() != 0 || options_.common.json.empty()) return;
    json_.emplace(options_.common.json);
    json_->commit();
  }

  /** False if a result was wrong. */
  bool run() {
    for (const Op op : options_.ops) {
      std::vector<std::int64_t> sizes = options_.common.sizes;
      if (op == Op::barrier) sizes = {0};
      for (const std::int64_t bytes : sizes) {
        if (!measure(op, bytes)) return false;
      }
    }
    return true;
  }

 private:
  struct NamedPeer {
    std::string name;
    std::unique_ptr<Peer> peer;
  };
  /** Names of a way: whose it is, and which. */
  struct Names {
    std::string peer;
    std::string algorithm;
  };

  bool measure(Op op, std::int64_t wanted) {
    const int ranks = comm_.world_size();
    const DType dtype = options_.common.dtype;
    const std::int64_t bytes = rounded_bytes(op, dtype, wanted, ranks);
    const Operands own(comm_, Buffers::private_memory, op, bytes);
    std::vector<Operands> operands;
    std::vector<Variant> variants;
    std::vector<Names> names;
    const auto enter = [&](const Names& name, const Call& call, std::function<void()> run) {
      const bool learns = name.peer == "tutti" && ranks_per_host_ > 1;
      variants.push_back({name.peer + " " + name.algorithm, call, std::move(run), true, learns});
      names.push_back(name);
    };
    operands.reserve(2 * options_.common.buffers.size());
    // On the memory of the peers if that is of the same kind: long ones take a tenth longer on
    // memory that nobody else uses.
    const auto enter_tutti = [&](const std::string& algorithm, Buffers buffers, DType type) {
      const std::int64_t length = bytes / size_of(dtype) * size_of(type);
      const bool shares = buffers == Buffers::private_memory;
      if (!shares) operands.emplace_back(comm_, buffers, op, length);
      const Call call = (shares ? own : operands.back()).call(op, type, length, ranks);
      enter({"tutti", algorithm}, call, way_of_tutti(comm_, call));
    };
    for (const Buffers buffers : options_.common.buffers) {
      const bool arena = buffers == Buffers::arena;
      enter_tutti(arena ? "symmetric" : "default", buffers, dtype);
      if (op != Op::all_reduce || dtype != DType::f32) continue;
      enter_tutti(arena ? "symmetric_bf16" : "bf16", buffers, DType::bf16);
    }
    const Call call = own.call(op, dtype, bytes, ranks);
    for (const NamedPeer& each : peers_) {
      for (Way& way : each.peer->ways(call)) {
        enter({each.name, way.algorithm}, call, std::move(way.run));
      }
    }
    if (op == Op::barrier && !std::all_of(variants.begin(), variants.end(), holds_back)) {
      return false;
    }
    if (!take_turns(comm_, variants, options_.common.seconds)) return false;
    const int operations = op == Op::broadcast_round ? ranks : 1;  // of a run
    for (Variant& variant : variants) {
      for (double& seconds : variant.seconds) seconds /= operations;
    }
    if (comm_.global_rank() == 0) print(op, bytes, variants, names);
    return true;
  }

  void print(Op op, std::int64_t bytes, const std::vector<Variant>& variants,
             const std::vector<Names>& names) {
    const std::string congestion = congestion_control();
    std::printf("%s %s, %d hosts x %d, %s, %zu rounds\n", name_of(op), size_text(bytes).c_str(),
                hosts_, ranks_per_host_, congestion.c_str(), variants.front().seconds.size());
    for (std::size_t i = 0; i < variants.size(); ++i) {
      const double us = median_us(variants[i].seconds);
      const std::int64_t own_bytes = variants[i].call.bytes();
      std::optional<double> wire_us;
      if (options_.gbps) {
        wire_us =
            share_of_link(op, hosts_) * static_cast<double>(own_bytes) * 8e-3 / *options_.gbps;
      }
      std::printf("  %-36s %12.1f us", variants[i].name.c_str(), us);
      if (wire_us && *wire_us > 0) std::printf("  %5.3f of the wire", *wire_us / us);
      std::printf("\n");
      if (!json_) continue;
      std::array<char, 384> text{};
      std::snprintf(
          text.data(), text.size(),
          R"({"hosts": %d, "ranks_per_host": %d, "op": "%s", "bytes": %lld, )"
          R"("congestion": "%s", "peer": "%s", "algorithm": "%s", "us": %.3f, "wire_us": %s, )"
          "\"checked\": true}\n",
          hosts_, ranks_per_host_, name_of(op), static_cast<long long>(own_bytes),
          congestion.c_str(), names[i].peer.c_str(), names[i].algorithm.c_str(), us,
          wire_us ? std::to_string(*wire_us).c_str() : "null");
      json_->write(text.data());
    }
    std::fflush(stdout);
  }

  ClusterOptions options_;
  Communicator comm_;
  int ranks_per_host_;
  int hosts_ = 1;
  std::vector<NamedPeer> peers_;
  std::optional<OutputFile> json_;
};

int run(int argc, char** argv) {
  try {
    const ClusterOptions options = parse(argc, argv);
    prepare_open_mpi();
    MPI_Init(nullptr, nullptr);
    const bool ok = ClusterBench(options).run();
    MPI_Finalize();
    return ok ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "cluster_bench: %s\n", error.what());
    int initialised = 0;
    MPI_Initialized(&initialised);
    if (initialised != 0) MPI_Abort(MPI_COMM_WORLD, 2);
    return 2;
  }
}

}  // namespace
}  // namespace tutti::bench

int main(int argc, char** argv) { return tutti::bench::run(argc, argv); }
