// What ranks do on hosts whose network is slow or fails:
//
//   ranks slow|broadcast|all_reduce|barriers|connects|parts|splits|several|wire|join DIRECTORY
//   ranks calls DIRECTORY SEED [STEPS]
//
// `slow` moves a few MiB by several calls and checks them, `broadcast` and `all_reduce` do by one
// call what takes seconds on a slow wire, in messages as long as there are; `barriers` goes on
// until a rank is lost, `connects` makes parts of all ranks until then; in `parts` every
// second rank does so in a part, and those between come to the whole when there is a file
// DIRECTORY/come; `splits` makes parts of all ranks; in `several` rank 0 sends the last one
// messages in a row when there is that file; `wire` tells what carries bytes; `join` ends at once;
// `calls` makes every call of tutti's with random arguments, in random order, checks each result,
// and goes on for so many steps or until a rank is lost. Each rank writes what became of it to
// DIRECTORY/rank.N, since a host may be out of reach then: "ready PID", "done" or what it was told.
// In `calls` that is "ready PID HOSTS" (the host of each rank, by its lowest), "done HOSTS", and of
// a loss "lost NANOSECONDS WAITED RANKS MEMBERS ALL REASON": when, by the clock that all processes
// of the machine share, for how long this process has waited for a core, who, of which ranks, and
// who of all ranks. Those who lose somebody in a part ask the whole.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/hosts/transport.hpp"
#include "comm/layout.hpp"
#include "comm/wire.hpp"
#include "rig/steps.hpp"
#include "rig/trial.hpp"
#include "support/data.hpp"
#include "support/waited_for_a_core.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"

namespace tutti::test {
namespace {

constexpr std::int64_t kCount = 5 << 18;     // 5 MiB of floats
constexpr std::size_t kTrickling = 3 << 18;  // 3 MiB
constexpr int kLongSums = 12;  // in lanes, of two hosts; of more, which are longer, few

void expect(bool holds, const char* what) {
  if (!holds) throw Error(std::string(what) + " gave a wrong result");
}

bool all_are(const std::vector<float>& data, float value) {
  for (const float element : data) {
    if (element != value) return false;
  }
  return true;
}

void move_much(Communicator& communicator) {
  const int rank = communicator.global_rank();
  const int last = communicator.world_size() - 1;
  std::vector<float> data(static_cast<std::size_t>(kCount), rank == 0 ? 7.0F : 0.0F);
  communicator.broadcast(std::span<float>(data), 0);
  expect(all_are(data, 7.0F), "broadcast");
  data.assign(data.size(), static_cast<float>(rank));
  if (rank == 0) communicator.send(std::span<const float>(data), last);
  if (rank == last) {
    communicator.recv(std::span<float>(data), 0);
    expect(all_are(data, 0.0F), "send and recv");
  }
  communicator.barrier();  // all but two ranks have waited here while the message travelled
  data.assign(data.size() / 4, 1.0F);
  communicator.all_reduce(std::span<float>(data));
  expect(all_are(data, static_cast<float>(last + 1)), "all_reduce");
  std::vector<float> out(data.size());
  communicator.all_to_all(std::span<const float>(data), std::span<float>(out));
  expect(all_are(out, static_cast<float>(last + 1)), "all_to_all");
}

/** From rank 0, in one message where there are two hosts. */
void broadcast_much(Communicator& communicator) {
  std::vector<float> data(kTrickling, communicator.global_rank() == 0 ? 7.0F : 0.0F);
  communicator.broadcast(std::span<float>(data), 0);
  expect(all_are(data, 7.0F), "broadcast");
}

void all_reduce_much(Communicator& communicator) {
  std::vector<float> data(kTrickling, 1.0F);
  communicator.all_reduce(std::span<float>(data));
  expect(all_are(data, static_cast<float>(communicator.world_size())), "all_reduce");
}

void wait_for(const std::string& file) {
  while (!std::filesystem::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

/** Every second rank is in `part` until it loses somebody, and then comes to the whole; the others
 * come to it when there is a file `come`. */
void wait_in_parts(Communicator& whole, Communicator& part, const std::string& come) {
  const bool is_in_part = whole.global_rank() % 2 != 0;
  try {
    while (is_in_part) part.barrier();
  } catch (const PeerLost&) {
    whole.barrier();
  }
  wait_for(come);
  whole.barrier();
}

/** From rank 0 to the last rank: MPI carries it. */
void send_one(Communicator& communicator) {
  const int last = communicator.world_size() - 1;
  float one = 1;
  if (communicator.global_rank() == 0) communicator.send(std::span<const float>(&one, 1), last);
  if (communicator.global_rank() == last) communicator.recv(std::span<float>(&one, 1), 0);
}

/** In a row, once there is a file `come`: by MPI itself, as tutti would hear of a loss before. */
void send_several(Communicator& communicator, const std::string& come) {
  constexpr int kMessages = 4;
  // By the other kernel.
  constexpr std::chrono::milliseconds kUntilRefused{20};
  // At its connections, every 10 ms.
  constexpr std::chrono::milliseconds kUntilMpiLooks{50};
  const int last = communicator.world_size() - 1;
  const float one = 1;
  wait_for(come);
  if (communicator.global_rank() == 0) {
    MPI_Request request = MPI_REQUEST_NULL;
    for (int i = 0; i < kMessages; ++i) {
      MPI_Isend(&one, 1, MPI_FLOAT, last, 0, MPI_COMM_WORLD, &request);
      if (i == 0) std::this_thread::sleep_for(kUntilRefused);
    }
    const auto end = std::chrono::steady_clock::now() + kUntilMpiLooks;
    for (int found = 0; std::chrono::steady_clock::now() < end;) {
      MPI_Iprobe(last, 0, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
    }
  }
  communicator.barrier();
}

std::string listed(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += (text.empty() ? "" : ",") + std::to_string(rank);
  return text;
}

/** A step of every operation, and sums in lanes, where there are some, in an order and with
 * arguments that the seed decides. */
Trial every_call(const std::vector<int>& host_of, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const int ranks = static_cast<int>(host_of.size());
  const auto below = [&](std::size_t limit) { return static_cast<int>(random() % limit); };
  Trial trial;
  trial.seed = seed;
  trial.ranks = ranks;
  trial.start = Start::mpi;
  trial.parameters = {1 + below(9000), 1 + below(9000), 1 + below(9000)};
  for (int op = 0; op <= static_cast<int>(Op::allocate); ++op) {
    Step step;
    step.op = static_cast<Op>(op);
    if (step.op != Op::sparse_all_reduce) {
      step.dtype = kDTypes[static_cast<std::size_t>(below(kDTypes.size()))];
      const auto reduces = reductions(step.dtype);
      step.reduce = reduces[static_cast<std::size_t>(below(reduces.size()))];
    }
    const bool scans = step.op == Op::scan || step.op == Op::exscan;
    if (scans && step.reduce.kind == ReduceKind::average) step.reduce = Reduce::sum;
    step.count = (std::int64_t{1} << below(19)) + below(3);
    if (has_many_parts(step.op)) step.count = step.count / ranks + 1;
    step.place = static_cast<Place>(below(3));
    step.root = below(static_cast<std::size_t>(ranks));
    step.mode = static_cast<DistMode>(below(5));
    trial.program.push_back(step);
  }
  const Layout layout(host_of);
  const int hosts = layout.host_count();
  const std::int64_t fewest = HierarchicalTransport::fewest_in_lanes(hosts, ranks);
  const int long_sums = !Wire::has_lanes(layout) ? 0 : hosts == 2 ? kLongSums : kLongSums / 4;
  for (int i = 0; i < long_sums; ++i) {
    Step step;
    step.op = Op::all_reduce;
    step.dtype = below(2) == 0 ? DType::f32 : DType::i64;  // few elements to check
    step.count = (fewest + below(1 << 20)) / size_of(step.dtype) + 1;
    step.place = static_cast<Place>(below(3));
    step.in_place = below(2) == 0;
    trial.program.push_back(step);
  }
  std::shuffle(trial.program.begin(), trial.program.end(), random);
  return trial;
}

/** The lowest rank of each rank's host. */
std::vector<int> hosts_of(Communicator& communicator) {
  std::vector<int> hosts(static_cast<std::size_t>(communicator.world_size()));
  const int lowest = communicator.global_rank() - communicator.local_rank();
  communicator.all_gather(std::span<const int>(&lowest, 1), std::span<int>(hosts));
  return hosts;
}

/** Whom all ranks have lost. */
std::vector<int> lost_to_all(Communicator& world) {
  try {
    world.barrier();
  } catch (const PeerLost& error) {
    return error.ranks();
  }
  return {};
}

using Say = std::function<void(const std::string&)>;

void call_everything(const Say& say, std::uint64_t seed, std::optional<std::uint64_t> last) {
  const auto world = std::make_shared<Communicator>();
  const std::vector<int> hosts = hosts_of(*world);
  const Trial trial = every_call(hosts, seed);
  std::vector<int> members;
  Steps steps(trial, world, members);
  steps.before_call = [] {};
  say("ready " + std::to_string(::getpid()) + " " + listed(hosts));
  try {
    for (std::uint64_t number = 0; !last || number < *last; ++number) {
      steps.run(trial.program[number % trial.program.size()], number);
    }
    world->barrier();
    say("done " + listed(hosts));
  } catch (const PeerLost& error) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    const std::string waited = std::to_string(waited_for_a_core());
    std::vector<int> lost;
    for (const int rank : error.ranks()) lost.push_back(members[static_cast<std::size_t>(rank)]);
    const bool of_all = members.size() == static_cast<std::size_t>(world->world_size());
    say("lost " + std::to_string(std::chrono::nanoseconds(now).count()) + " " + waited + " " +
        listed(lost) + " " + listed(members) + " " + listed(of_all ? lost : lost_to_all(*world)) +
        " " + error.what());
  }
}

/** Meets the others, who may take longer to start than the deadline of the test. */
void start_mpi() {
  Communicator communicator(CommOptions{.timeout = std::chrono::seconds(60)});
  communicator.barrier();
}

int run(const std::vector<std::string>& arguments) {
  const std::string& what = arguments[0];
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  const std::string name = arguments[1] + "/rank." + (rank == nullptr ? "0" : rank);
  const Say say = [&](const std::string& text) {
    std::ofstream(name + ".new") << text;
    std::rename((name + ".new").c_str(), name.c_str());
  };
  try {
    start_mpi();
    if (what == "calls") {
      std::optional<std::uint64_t> last;
      if (arguments.size() > 3) last = std::stoull(arguments[3]);
      call_everything(say, std::stoull(arguments.at(2)), last);
      return 0;
    }
    Communicator communicator;
    std::optional<Communicator> part;
    if (what == "parts") part = communicator.split(communicator.global_rank() % 2, 0);
    if (what == "several") send_one(communicator);
    communicator.barrier();
    say("ready " + std::to_string(::getpid()));
    if (what == "slow") move_much(communicator);
    if (what == "broadcast") broadcast_much(communicator);
    if (what == "all_reduce") all_reduce_much(communicator);
    for (int i = 0; what == "splits" && i < 3; ++i) communicator.split(0, 0)->barrier();
    if (what == "wire") return say(communicator.describe()), 0;
    const std::string come = arguments[1] + "/come";
    if (part) wait_in_parts(communicator, *part, come);
    if (what == "several") send_several(communicator, come);
    while (what == "barriers") communicator.barrier();
    while (what == "connects") communicator.split(0, 0);
    say("done");
  } catch (const std::exception& error) {
    say(error.what());
  }
  return 0;
}

}  // namespace
}  // namespace tutti::test

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  return tutti::test::run({argv + 1, argv + argc});
}
