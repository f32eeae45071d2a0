// What many hosts would do: the code between hosts on simulated ones, beside the alpha-beta bound.
//
//     scale_sim --hosts N --ranks R --latency-us L --gbps G --json FILE
//               [--overhead-ns O] [--timeout-ms T] [--largest BYTES] [--room BYTES]
//
// JSON Lines: what, hosts, ranks, bytes, us (until the last host is done), bound_us,
// messages_per_rank, bytes_per_rank, state_per_process (bytes of the heap when the last host is
// done, the simulated network and the data of a call among them), checked. Each host is one
// process, its leader: what the ranks of a host do among themselves is not in the times, and what
// its leader sends is divided by `ranks`. In `leaving` every rank is a process, or only the leaders
// if those are too many: then `ranks` is 1. Computing takes no time. O is what a message takes on a
// link besides its bytes. With --room the leaders' messages travel over connections, uncut, of
// which each holds so many bytes on their way, as where hosts have no fabric. Sums are checked if
// all hosts' data have room in memory.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "comm/hosts/group/agreement.hpp"
#include "comm/hosts/group/all_reduce.hpp"
#include "comm/hosts/group/broadcast.hpp"
#include "comm/hosts/group/group.hpp"
#include "comm/hosts/group/movements.hpp"
#include "comm/hosts/group/notes.hpp"
#include "comm/hosts/group/one_way.hpp"
#include "comm/hosts/group/reduce.hpp"
#include "comm/simulation/heap.hpp"
#include "comm/simulation/wire.hpp"
#include "device/cpu/reduction.hpp"
#include "support/scale_meeting.hpp"
#include "support/scale_options.hpp"
#include "support/scale_report.hpp"
#include "tutti/error.hpp"
#include "tutti/log.hpp"

namespace {

using tutti::GroupAgreement;
using tutti::HostGroup;
using tutti::bench::connect_leaders;
using tutti::bench::ScaleOptions;
using tutti::bench::ScaleReport;
using tutti::bench::tell_places;
using Row = tutti::bench::ScaleRow;
using tutti::simulation::Cluster;
using tutti::simulation::Process;
using tutti::simulation::Scheduler;
using tutti::simulation::SimulatedWire;
using tutti::simulation::Traffic;
using Microseconds = std::chrono::duration<double, std::micro>;

/** One host of a scene, by its leader. */
struct Host {
  SimulatedWire& wire;
  HostGroup group;
  GroupAgreement agreement{group};
};

/** What all hosts do at the same time, and what that takes. */
class Scene {
 public:
  using Act = std::function<void(Host& host)>;
  /** Messages of more bytes than plain agreements have travel without contents. */
  static constexpr std::int64_t kMostCopied = 8192;
  static constexpr std::chrono::seconds kBegin{1};

  /** Of `processes` a host, which stand for all of its ranks if it is one. */
  explicit Scene(const ScaleOptions& options, std::int64_t most_copied = kMostCopied,
                 int processes = 1)
      : options_(options), cluster_(options.hosts, processes, options.model(), 1, most_copied) {
    cluster_.set_tick(cluster_.network().model().latency);
    cluster_.set_room(options.room);
  }

  Cluster& cluster() { return cluster_; }
  Scheduler::Time begin() const { return begin_; }

  /** `act` of every host begins after all have met once. `may_fail`: in PeerLost. */
  Row play(std::string what, std::int64_t bytes, double bound_us, const Act& act,
           bool may_fail = false, bool meet_before = true) {
    const int processes = cluster_.size();
    Scheduler& scheduler = cluster_.scheduler();
    begin_ = scheduler.now() + kBegin;
    Traffic before;
    Traffic after;
    Scheduler::Time end{};
    scheduler.at(begin_, [&] { before = cluster_.traffic(); });
    std::vector<int> members;
    for (int host = 0; host < options_.hosts; ++host) {
      members.push_back(cluster_.layout().ranks_of(host).front());
    }
    int done = 0;
    const int must_end = processes - (may_fail ? 1 : 0);
    std::int64_t heap = 0;
    std::string error;
    cluster_.start([&](Process& process) {
      SimulatedWire wire(process, 1, std::chrono::milliseconds(options_.timeout_ms));
      wire.connect();
      Host host{wire, {wire, members}};
      if (meet_before) host.agreement.agree(1);
      process.compute(begin_ - scheduler.now());
      try {
        act(host);
        if (may_fail) error = "nobody was lost";
      } catch (const tutti::PeerLost& loss) {
        if (!may_fail) error = loss.what();
      } catch (const std::logic_error& wrong) {
        error = wrong.what();
      }
      end = std::max(end, scheduler.now());
      ++done;
      after = cluster_.traffic();
      if (done == must_end) heap = tutti::simulation::heap_in_use() - heap_before_;
      // None leaves while another one is still at it.
      process.compute(std::chrono::hours(1));
    });
    scheduler.run(begin_ + std::chrono::minutes(30));
    if (done < must_end) throw tutti::Error(what + " did not end");
    if (!error.empty()) throw tutti::Error(what + ": " + error);
    const double ranks = static_cast<double>(options_.hosts) * options_.ranks;
    const auto messages =
        after.messages - before.messages + after.control_messages - before.control_messages;
    return {std::move(what),
            bytes,
            Microseconds(end - begin_).count(),
            bound_us,
            static_cast<double>(messages) / ranks,
            static_cast<double>(after.bytes - before.bytes) / ranks,
            options_.ranks,
            static_cast<double>(heap) / processes};
  }

 private:
  const ScaleOptions& options_;
  std::int64_t heap_before_ = tutti::simulation::heap_in_use();
  Cluster cluster_;
  Scheduler::Time begin_{};
};

double wire_us(const ScaleOptions& options, double bytes) {
  return bytes * 8 / (options.gbps * 1e3);
}

Row agreement(const ScaleOptions& options) {
  return Scene(options).play("agreement", 0, options.latency_us,
                             [](Host& host) { host.agreement.agree(2); });
}

/** What a host brings, and the sum of what all do: whole numbers, below 2^24. */
float brought_by(int host, std::size_t i) {
  return static_cast<float>(host + 1 + static_cast<int>(i % 7));
}
float sum_of(int hosts, std::size_t i) {
  const int all_hosts = hosts * (hosts + 1) / 2;
  return static_cast<float>(all_hosts + hosts * static_cast<int>(i % 7));
}

void add_up(std::span<float> sums, std::span<const void* const> parts) {
  std::vector<float> result(sums.size());
  for (const void* part : parts) {
    const auto* const values = static_cast<const float*>(part);
    for (std::size_t i = 0; i < result.size(); ++i) result[i] += values[i];
  }
  std::copy(result.begin(), result.end(), sums.begin());
}

/** The data of one host; of all of them where those have no room, and nobody looks at them. */
class Data {
 public:
  Data(std::vector<float>& shared, bool checked) : checked_(checked), data_(shared) {
    if (checked) own_.resize(shared.size());
  }
  std::span<float> values() { return checked_ ? std::span(own_) : std::span(data_); }
  void fill(int host) {
    for (std::size_t i = 0; i < own_.size(); ++i) own_[i] = brought_by(host, i);
  }
  void check(int hosts) const {
    for (std::size_t i = 0; i < own_.size(); ++i) {
      if (own_[i] != sum_of(hosts, i)) throw std::logic_error("a wrong sum");
    }
  }

 private:
  bool checked_;
  std::vector<float>& data_;
  std::vector<float> own_;
};

/** With its agreement, as a communicator calls it: what is short goes along with that. */
Row all_reduce(const ScaleOptions& options, std::int64_t bytes) {
  constexpr std::int64_t kMostData = std::int64_t{256} << 20;  // of all hosts, if they are checked
  const bool checked = bytes * options.hosts <= kMostData;
  std::vector<float> shared(static_cast<std::size_t>(bytes / 4));
  const double share = 2.0 * (options.hosts - 1) / options.hosts;
  const double bound = options.latency_us + wire_us(options, share * static_cast<double>(bytes));
  // Those that carry data along begin with what is compared.
  constexpr std::int64_t kMostCarried = std::int64_t{128} << 10;
  const bool copies = checked || bytes <= kMostCarried;
  const auto act = [&](Host& host) {
    const HostGroup& group = host.group;
    Data data(shared, checked);
    data.fill(group.position());
    const std::span<float> values = data.values();
    if (host.agreement.carries(bytes, bytes)) {
      const auto contents = std::as_writable_bytes(values);
      const auto add = [&](std::span<const void* const> parts) { add_up(values, parts); };
      if (!host.agreement.agree(2, {contents, bytes}, contents, add)) {
        throw std::logic_error("the simulated hosts do not agree");
      }
    } else {
      tutti::AllReduce(group, options.ranks == 1)
          .run(values.data(), std::ssize(values), tutti::DType::f32,
               tutti::combine_of(tutti::Reduce::sum, group.size()),
               {.agree = [&](tutti::Ahead* ahead) { host.agreement.agree(2, ahead); }});
    }
    data.check(group.size());
  };
  Row row = Scene(options, copies ? std::numeric_limits<std::int64_t>::max() : Scene::kMostCopied)
                .play("all_reduce", bytes, bound, act);
  row.checked = checked;
  return row;
}

/** Of a long message, without its agreement. */
Row one_way(const ScaleOptions& options, std::string what, std::int64_t bytes,
            void (*call)(const HostGroup& group, std::span<float> data)) {
  std::vector<float> data(static_cast<std::size_t>(bytes / 4));  // of all hosts: nobody looks at it
  const double bound = options.latency_us + wire_us(options, static_cast<double>(bytes));
  return Scene(options).play(std::move(what), bytes, bound,
                             [&](Host& host) { call(host.group, data); });
}

Row broadcast(const ScaleOptions& options, std::int64_t bytes) {
  return one_way(options, "broadcast", bytes, [](const HostGroup& group, std::span<float> data) {
    broadcast_from(group, 0, reinterpret_cast<std::byte*>(data.data()), std::ssize(data) * 4);
  });
}

/** One that waits for no answer, with its note: checked. */
Row one_way_broadcast(const ScaleOptions& options, std::int64_t bytes) {
  const double bound = options.latency_us + wire_us(options, static_cast<double>(bytes));
  constexpr int kRoot = 0;
  const auto act = [&](Host& host) {
    const tutti::OneWayCall call(host.group, {kRoot, bytes});
    tutti::Notes notes(host.wire);
    const tutti::Signature signature{
        .sequence = 1, .operation = tutti::Operation::broadcast, .root = kRoot, .count = bytes};
    const bool is_root = host.group.position() == kRoot;
    const int giver = is_root ? tutti::Notes::kNobody : call.giver();
    notes.begin(signature, {}, std::span(&giver, is_root ? 0 : 1));
    const std::vector<std::byte> wanted(static_cast<std::size_t>(bytes), std::byte{7});
    if (is_root) return call.send(notes, wanted, {});
    std::vector<std::byte> data(wanted.size());
    call.take(notes, data);
    if (data != wanted) throw std::logic_error("a broadcast brings something else");
  };
  Row row = Scene(options, tutti::Wire::kPiece).play("one-way broadcast", bytes, bound, act);
  row.checked = true;
  return row;
}

Row reduce(const ScaleOptions& options, std::int64_t bytes) {
  return one_way(options, "reduce", bytes, [](const HostGroup& group, std::span<float> data) {
    reduce_to(group, 0, data.data(), std::ssize(data), tutti::DType::f32,
              tutti::combine_of(tutti::Reduce::sum, group.size()));
  });
}

/** Of what MPI does before only an agreement is in it; from there to the first call. */
Row start_up(const ScaleOptions& options) {
  return Scene(options).play(
      "start-up", 0, 2 * options.latency_us,
      [&](Host& host) {
        host.agreement.agree(3);
        tell_places(host.group, options.ranks);
        connect_leaders(host.group);
        host.agreement.agree(4);
      },
      false, false);
}

/** Into the hosts with an even number and those with an odd one: the notes of all ranks, then a
 * wire for each part, and its first agreement. */
Row split(const ScaleOptions& options) {
  constexpr std::int64_t kNote = 140;  // color, key, context, ticket
  const std::int64_t block = kNote * options.ranks;
  const double bound =
      2 * options.latency_us + wire_us(options, static_cast<double>(block * (options.hosts - 1)));
  Scene scene(options);
  const std::vector<std::byte> own(static_cast<std::size_t>(block));
  std::vector<std::byte> notes(own.size() *
                               static_cast<std::size_t>(options.hosts));  // in which nobody looks
  return scene.play("split", block, bound, [&](Host& whole) {
    const HostGroup& group = whole.group;
    whole.agreement.agree(6);
    all_gather(group, own, notes);
    std::vector<int> members;
    for (int host = group.position() % 2; host < group.size(); host += 2) members.push_back(host);
    SimulatedWire part_wire(scene.cluster().process(whole.wire.rank()), 2, whole.wire.timeout());
    part_wire.connect();
    Host part{part_wire, {part_wire, members}};
    part.agreement.agree(7);
    connect_leaders(part.group);
    part.agreement.agree(8);
  });
}

/** Until all ranks know that all have left. */
Row leaving(const ScaleOptions& options) {
  constexpr int kMostProcesses = 2048;  // each has something on each other one
  ScaleOptions simulated = options;
  if (options.hosts * options.ranks > kMostProcesses) simulated.ranks = 1;
  return Scene(simulated, Scene::kMostCopied, simulated.ranks)
      .play(
          "leaving", 0, options.latency_us, [](Host& host) { host.wire.leave(); }, false, false);
}

/** A host is lost in an agreement: until all others know. */
Row lost_host(const ScaleOptions& options, std::string what, double bound_us,
              void (Cluster::*fault)(int)) {
  Scene scene(options);
  const int victim = options.hosts / 2;
  return scene.play(
      std::move(what), 0, bound_us,
      [&](Host& host) {
        if (host.wire.rank() == victim) (scene.cluster().*fault)(victim);
        host.agreement.agree(5);
      },
      true);
}

void run(const ScaleOptions& options) {
  tutti::set_log_sink(
      {[](tutti::LogLevel) { return false; }, [](tutti::LogLevel, std::string_view) {}});
  ScaleReport report(options);
  report.add(agreement(options));
  for (std::int64_t bytes = 8; bytes <= options.largest; bytes = bytes == 8 ? 1024 : bytes * 4) {
    report.add(all_reduce(options, bytes));
  }
  for (const std::int64_t bytes : {8, 1024}) report.add(one_way_broadcast(options, bytes));
  for (std::int64_t bytes = 1 << 18; bytes <= options.largest; bytes *= 16) {
    report.add(broadcast(options, bytes));
    report.add(reduce(options, bytes));
  }
  report.add(start_up(options));
  report.add(split(options));
  report.add(leaving(options));
  report.add(lost_host(options, "process killed", options.latency_us, &Cluster::kill));
  report.add(lost_host(options, "host crashed", options.timeout_ms * 1e3, &Cluster::crash));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(tutti::bench::parse_scale_options(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scale_sim: %s\n", error.what());
    return 1;
  }
  return 0;
}
