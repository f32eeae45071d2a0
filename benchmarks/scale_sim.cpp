// What many hosts would do: the code between hosts on simulated ones, beside the alpha-beta bound.
//
//     scale_sim --hosts N --ranks R --latency-us L --gbps G --json FILE
//               [--overhead-ns O] [--timeout-ms T] [--largest BYTES]
//
// JSON Lines: what, hosts, ranks, bytes, us (until the last host is done), bound_us,
// messages_per_rank, bytes_per_rank. Each host is one process, its leader: what the ranks of a host
// do among themselves is not in the times, and what its leader sends is divided by `ranks`.
// Computing takes no time. O is what a message takes on a link besides its bytes.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "comm/hosts/group.hpp"
#include "comm/simulation/wire.hpp"
#include "device/cpu/reduction.hpp"
#include "tutti/error.hpp"
#include "tutti/log.hpp"

namespace {

using tutti::HostGroup;
using tutti::simulation::Cluster;
using tutti::simulation::NetworkModel;
using tutti::simulation::Process;
using tutti::simulation::Scheduler;
using tutti::simulation::SimulatedWire;
using tutti::simulation::Traffic;
using Microseconds = std::chrono::duration<double, std::micro>;

struct Options {
  int hosts = 64;
  int ranks = 8;
  double latency_us = 10;
  double gbps = 100;
  double overhead_ns = 500;
  int timeout_ms = 5000;
  std::int64_t largest = std::int64_t{1} << 20;
  std::string json;

  NetworkModel model() const {
    NetworkModel model;
    model.latency = std::chrono::nanoseconds(std::llround(latency_us * 1e3));
    model.overhead = std::chrono::nanoseconds(std::llround(overhead_ns));
    model.bytes_per_second = gbps * 1e9 / 8;
    return model;
  }
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    const std::string value = argv[i + 1];
    if (name == "--hosts") {
      options.hosts = std::stoi(value);
    } else if (name == "--ranks") {
      options.ranks = std::stoi(value);
    } else if (name == "--latency-us") {
      options.latency_us = std::stod(value);
    } else if (name == "--gbps") {
      options.gbps = std::stod(value);
    } else if (name == "--overhead-ns") {
      options.overhead_ns = std::stod(value);
    } else if (name == "--timeout-ms") {
      options.timeout_ms = std::stoi(value);
    } else if (name == "--largest") {
      options.largest = std::stoll(value);
    } else if (name == "--json") {
      options.json = value;
    } else {
      throw tutti::InvalidArgument("unknown option " + std::string(name));
    }
  }
  if (argc % 2 == 0) throw tutti::InvalidArgument("the last option has no value");
  if (options.hosts < 2 || options.hosts > 4096 || options.ranks < 1) {
    throw tutti::InvalidArgument("--hosts is 2 to 4096, --ranks at least 1");
  }
  return options;
}

struct Row {
  std::string what;
  std::int64_t bytes;
  double us;
  double bound_us;
  double messages_per_rank;
  double bytes_per_rank;
};

/** What all hosts do at the same time, and what that takes. */
class Scene {
 public:
  using Act = std::function<void(HostGroup& group, SimulatedWire& wire)>;
  /** Messages of more bytes than plain agreements have travel without contents. */
  static constexpr std::int64_t kMostCopied = 8192;
  static constexpr std::chrono::seconds kBegin{1};

  explicit Scene(const Options& options, std::int64_t most_copied = kMostCopied)
      : options_(options), cluster_(options.hosts, 1, options.model(), 1, most_copied) {
    cluster_.set_tick(cluster_.network().model().latency);
  }

  Cluster& cluster() { return cluster_; }
  Scheduler::Time begin() const { return begin_; }

  /** `act` of every host begins after all have met once. `may_fail`: in PeerLost. */
  Row play(std::string what, std::int64_t bytes, double bound_us, const Act& act,
           bool may_fail = false, bool meet_before = true) {
    Scheduler& scheduler = cluster_.scheduler();
    begin_ = scheduler.now() + kBegin;
    Traffic before;
    Traffic after;
    Scheduler::Time end{};
    scheduler.at(begin_, [&] { before = cluster_.traffic(); });
    std::vector<int> members(static_cast<std::size_t>(options_.hosts));
    std::iota(members.begin(), members.end(), 0);
    int done = 0;
    std::string error;
    cluster_.start([&](Process& process) {
      SimulatedWire wire(process, 1, std::chrono::milliseconds(options_.timeout_ms));
      wire.connect();
      HostGroup group(wire, members);
      if (meet_before) group.agree(1);
      process.compute(begin_ - scheduler.now());
      try {
        act(group, wire);
        if (may_fail) error = "nobody was lost";
      } catch (const tutti::PeerLost& loss) {
        if (!may_fail) error = loss.what();
      }
      end = std::max(end, scheduler.now());
      ++done;
      after = cluster_.traffic();
      // None leaves while another one is still at it.
      process.compute(std::chrono::hours(1));
    });
    scheduler.run(begin_ + std::chrono::minutes(30));
    if (done < options_.hosts - (may_fail ? 1 : 0)) throw tutti::Error(what + " did not end");
    if (!error.empty()) throw tutti::Error(what + ": " + error);
    const double ranks = static_cast<double>(options_.hosts) * options_.ranks;
    const auto messages =
        after.messages - before.messages + after.control_messages - before.control_messages;
    return {std::move(what),
            bytes,
            Microseconds(end - begin_).count(),
            bound_us,
            static_cast<double>(messages) / ranks,
            static_cast<double>(after.bytes - before.bytes) / ranks};
  }

 private:
  const Options& options_;
  Cluster cluster_;
  Scheduler::Time begin_{};
};

double wire_us(const Options& options, double bytes) { return bytes * 8 / (options.gbps * 1e3); }

Row agreement(const Options& options) {
  return Scene(options).play("agreement", 0, options.latency_us,
                             [](HostGroup& group, SimulatedWire&) { group.agree(2); });
}

/** With its agreement, as a communicator calls it: what is short goes along with that. */
Row all_reduce(const Options& options, std::int64_t bytes) {
  // All hosts have the same memory: nobody looks at the sums.
  std::vector<float> data(static_cast<std::size_t>(bytes / 4));
  const double share = 2.0 * (options.hosts - 1) / options.hosts;
  const double bound = options.latency_us + wire_us(options, share * static_cast<double>(bytes));
  const auto contents = std::as_writable_bytes(std::span(data));
  const auto add = [](std::span<const void* const>) {};
  // Those that carry data along begin with what is compared.
  constexpr std::int64_t kMostCarried = std::int64_t{128} << 10;
  const std::int64_t copied = bytes <= kMostCarried ? tutti::Wire::kPiece : Scene::kMostCopied;
  return Scene(options, copied)
      .play("all_reduce", bytes, bound, [&](HostGroup& group, SimulatedWire&) {
        if (group.carries(bytes, bytes)) {
          if (!group.agree(2, {contents, bytes}, contents, add)) {
            throw std::logic_error("the simulated hosts do not agree");
          }
          return;
        }
        group.agree(2);
        group.all_reduce(data.data(), std::ssize(data), tutti::DType::f32,
                         tutti::combine_of(tutti::Reduce::sum, group.size()));
      });
}

/** From the first message to the first agreement. */
Row start_up(const Options& options) {
  return Scene(options).play(
      "start-up", 0, 2 * options.latency_us,
      [](HostGroup& group, SimulatedWire&) {
        group.agree(3);
        group.agree(4);
      },
      false, false);
}

/** A host is lost in an agreement: until all others know. */
Row lost_host(const Options& options, std::string what, double bound_us,
              void (Cluster::*fault)(int)) {
  Scene scene(options);
  const int victim = options.hosts / 2;
  return scene.play(
      std::move(what), 0, bound_us,
      [&](HostGroup& group, SimulatedWire& wire) {
        if (wire.rank() == victim) (scene.cluster().*fault)(victim);
        group.agree(5);
      },
      true);
}

void write(const Options& options, const Row& row, std::ofstream* json) {
  std::printf("%-22s %12lld %14.1f %14.1f %14.1f %16.0f\n", row.what.c_str(),
              static_cast<long long>(row.bytes), row.us, row.bound_us, row.messages_per_rank,
              row.bytes_per_rank);
  std::fflush(stdout);
  if (json == nullptr) return;
  std::array<char, 512> line{};
  std::snprintf(line.data(), line.size(),
                R"({"what": "%s", "hosts": %d, "ranks": %d, "bytes": %lld, "us": %.3f, )"
                R"("bound_us": %.3f, "messages_per_rank": %.3f, "bytes_per_rank": %.1f})",
                row.what.c_str(), options.hosts, options.ranks, static_cast<long long>(row.bytes),
                row.us, row.bound_us, row.messages_per_rank, row.bytes_per_rank);
  *json << line.data() << std::endl;
}

void run(const Options& options) {
  tutti::set_log_sink(
      {[](tutti::LogLevel) { return false; }, [](tutti::LogLevel, std::string_view) {}});
  std::optional<std::ofstream> file;
  if (!options.json.empty()) file.emplace(options.json);
  std::ofstream* const json = file ? &*file : nullptr;
  std::printf("%d hosts of %d ranks, %g us, %g Gbit/s\n%-22s %12s %14s %14s %14s %16s\n",
              options.hosts, options.ranks, options.latency_us, options.gbps, "what", "bytes", "us",
              "bound us", "messages/rank", "bytes/rank");
  write(options, agreement(options), json);
  for (std::int64_t bytes = 8; bytes <= options.largest; bytes = bytes == 8 ? 1024 : bytes * 4) {
    write(options, all_reduce(options, bytes), json);
  }
  write(options, start_up(options), json);
  write(options, lost_host(options, "process killed", options.latency_us, &Cluster::kill), json);
  write(options, lost_host(options, "host crashed", options.timeout_ms * 1e3, &Cluster::crash),
        json);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scale_sim: %s\n", error.what());
    return 1;
  }
  return 0;
}
