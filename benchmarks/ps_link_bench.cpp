// What a link of the parameter server costs: medians of a push and its answer, and of payloads.
//   ps_link_bench [ROUNDS]             two processes of this host, sharing memory and not
//   ps_link_bench serve FILE           a server, which says in FILE where it is
//   ps_link_bench work FILE f32|f16    a worker elsewhere: pushes and looks up batches of rows
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <fstream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "ps/link/meeting.hpp"
#include "support/median.hpp"
#include "support/numbers.hpp"

namespace {

using namespace std::chrono_literals;
namespace ps = tutti::ps;
namespace mpi = tutti::mpi;
namespace bench = tutti::bench;
using tutti::bench::median_of;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kDim = 16;
constexpr std::int64_t kBatch = 13312;  // ids of a batch of the CTR model
constexpr std::int64_t kIds = std::int64_t{8} << 20;
constexpr std::chrono::milliseconds kTimeout = 20s;

ps::RowFormat format_of(std::string_view wire) {
  return {{kDim}, wire == "f16" ? ps::WireFormat::f16 : ps::WireFormat::f32};
}

/** Answers, look-ups with rows of zeros, until the worker has stopped. */
void serve(ps::Listener listener, const ps::RowFormat& format) {
  const std::vector<ps::Name> workers{{0, "worker 0"}};
  const auto links = ps::meet_workers(std::move(listener), workers, {}, format, "", kTimeout);
  std::vector<std::byte> rows;
  double sum = 0;
  while (links->lost().empty()) {
    const auto request = links->next(1s);
    if (!request) continue;
    rows.resize(static_cast<std::size_t>(
        request->header.kind == ps::RequestKind::look_up ? request->header.count * kDim * 4 : 0));
    for (std::size_t at = 0; at < request->payload.size(); at += 64) {  // reads each cache line
      sum += std::to_integer<int>(request->payload[at]);
    }
    links->answer(*request, {}, rows);
    if (request->header.kind == ps::RequestKind::stop) break;
  }
  if (sum < 0) std::printf("%f\n", sum);
}

ps::Listener listen(mpi::Endpoint& endpoint) {
  std::uint16_t port = 0;
  mpi::Socket socket = mpi::listen_anywhere(port);
  endpoint = mpi::Endpoint::at(port);
  return {std::move(socket), endpoint.token, {1, "server 0"}};
}

std::unique_ptr<ps::Link> connect(const mpi::Endpoint& endpoint, const ps::RowFormat& format) {
  ps::ServerAddress server;
  server.name = {1, "server 0"};
  server.endpoint = endpoint;
  auto meeting = ps::meet_servers(std::span(&server, 1), 0, {0, "worker 0"}, {}, format, kTimeout);
  return std::move(meeting.servers.front().link);
}

std::uint64_t push(ps::Link& link, ps::RequestKind kind, std::int64_t count, std::int64_t bytes,
                   const std::vector<std::int64_t>& ids = {}) {
  const ps::Draft draft = link.draft(bytes);
  if (!ids.empty()) std::memcpy(draft.payload.data(), ids.data(), ids.size() * 8);
  ps::RequestHeader header;
  header.kind = kind;
  header.table = 0;
  header.count = count;
  header.payload_bytes = bytes;
  return link.send(header, draft);
}

std::vector<std::int64_t> some_ids() {
  std::mt19937_64 random(1);
  std::vector<std::int64_t> ids(kBatch);
  for (auto& id : ids) id = static_cast<std::int64_t>(random() % kIds);
  std::sort(ids.begin(), ids.end());
  return ids;
}

/** One row, and dense gradients. */
void measure_answers(ps::Link& link, const char* name, int rounds) {
  const auto row = [&] { link.wait(push(link, ps::RequestKind::push_rows, 1, 8 + kDim * 4, {7})); };
  std::printf("%s: one row %.2f us", name, median_of(rounds, row));
  // A worker that computes for so long finds the server asleep; one that sleeps, its core as well.
  const auto after = [&](const auto& pause) {
    std::vector<double> times;
    for (int round = 0; round < 200; ++round) {
      pause();
      times.push_back(median_of(1, row));
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  };
  const auto compute = [] {
    for (const auto start = Clock::now(); Clock::now() - start < 300us;) continue;
  };
  std::printf(", of a sleeping server %.2f us, of a sleeping machine %.2f us", after(compute),
              after([] { std::this_thread::sleep_for(2ms); }));
  for (const std::int64_t mib : {4, 64}) {
    const std::int64_t bytes = mib << 20;
    const auto dense = [&] {
      link.wait(push(link, ps::RequestKind::push_dense, bytes / 4, bytes));
    };
    std::printf(", %ld MiB %.2f ms", static_cast<long>(mib), median_of(20, dense) / 1000);
  }
  std::printf("\n");
}

/** Batches of rows that follow each other; MB/s of what has been on the wire. */
void measure_wire(ps::Link& link, std::string_view wire, int batches) {
  const std::vector<std::int64_t> ids = some_ids();
  const auto run = [&](const char* name, ps::RequestKind kind, std::int64_t bytes) {
    std::deque<std::uint64_t> under_way;
    const auto wait_for_all_but = [&](std::size_t most) {
      for (; under_way.size() > most; under_way.pop_front()) link.wait(under_way.front());
    };
    const std::int64_t before = link.bytes_sent() + link.bytes_received();
    const auto start = Clock::now();
    for (int batch = 0; batch < batches; ++batch) {
      under_way.push_back(push(link, kind, kBatch, bytes, ids));
      wait_for_all_but(4);
    }
    wait_for_all_but(0);
    const std::chrono::duration<double> took = Clock::now() - start;
    const auto moved = static_cast<double>(link.bytes_sent() + link.bytes_received() - before);
    std::printf("%s %s: %.1f MB/s of the wire, %.0f rows/s\n", name, std::string(wire).c_str(),
                moved / took.count() / 1e6, static_cast<double>(batches * kBatch) / took.count());
  };
  run("push", ps::RequestKind::push_rows, kBatch * (8 + kDim * 4));
  run("look_up", ps::RequestKind::look_up, kBatch * 8);
}

void stop(ps::Link& link) { link.wait(push(link, ps::RequestKind::stop, 0, 0)); }

void on_this_host(bool shared, int rounds) {
  mpi::Endpoint endpoint;
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) std::exit(1);
  const pid_t child = ::fork();
  if (child == 0) {
    if (!shared) ::setenv("TUTTI_HOST_ID", "another", 1);
    ps::Listener listener = listen(endpoint);
    if (::write(pipe[1], &endpoint, sizeof endpoint) != sizeof endpoint) std::_Exit(1);
    serve(std::move(listener), format_of("f32"));
    std::_Exit(0);
  }
  if (::read(pipe[0], &endpoint, sizeof endpoint) != sizeof endpoint) std::exit(1);
  const auto link = connect(endpoint, format_of("f32"));
  measure_answers(*link, shared ? "shared memory" : "connection  ", rounds);
  stop(*link);
  ::waitpid(child, nullptr, 0);
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string_view what = argc > 2 ? argv[1] : "";
  if (what == "serve") {
    mpi::Endpoint endpoint;
    ps::Listener listener = listen(endpoint);
    const std::string path = argv[2];
    std::ofstream(path + ".new", std::ios::binary)
        .write(reinterpret_cast<const char*>(&endpoint), sizeof endpoint);
    std::rename((path + ".new").c_str(), path.c_str());
    serve(std::move(listener), format_of(argc > 3 ? argv[3] : "f32"));
  } else if (what == "work") {
    mpi::Endpoint endpoint;
    std::ifstream(argv[2], std::ios::binary)
        .read(reinterpret_cast<char*>(&endpoint), sizeof endpoint);
    const std::string_view wire = argc > 3 ? argv[3] : "f32";
    const auto link = connect(endpoint, format_of(wire));
    measure_wire(*link, wire, argc > 4 ? bench::number_of("ROUNDS", argv[4], 1) : 200);
    stop(*link);
  } else {
    const int rounds = argc > 1 ? bench::number_of("ROUNDS", argv[1], 4) : 20000;
    on_this_host(true, rounds);
    on_this_host(false, rounds / 4);
  }
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "ps_link_bench: %s\n", error.what());
  return 1;
}
