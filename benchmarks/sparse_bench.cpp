// What a sum of sparse vectors sends between hosts, by algorithm.
//
//   sparse_bench [--hosts 3x1] [--n N] [--density D] [--common F] [--runs R]
//
// Starts itself under mpiexec; ranks pretend to be on as many hosts. A fraction F of each rank's
// indices is common to all, the others are its own, all at random. A JSON line for the default and
// for each TUTTI_SPARSE: `bytes_between` counts what all ranks sent to other hosts (from
// SparseStats), beside what an fp32 all-reduce sends at least (`fp32_bytes`) and what an all-gather
// of every rank's own packet to every rank of the other hosts would (`flat_bytes`). `ms` are
// medians of rank 0; `checked`: the result has the bits of an all_reduce of the same vectors.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "comm/sparse/packet.hpp"
#include "support/numbers.hpp"
#include "tutti/communicator.hpp"
#include "tutti/error.hpp"

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  int hosts = 3;
  int ranks_each = 1;
  std::int64_t count = 16 << 20;
  double density = 0.01;
  double common = 0.0;
  int runs = 5;
};

struct Data {
  std::vector<std::uint32_t> indices;
  std::vector<float> values;

  tutti::SparseView view() const {
    return {indices.data(), values.data(), static_cast<std::int64_t>(indices.size())};
  }
};

Data make_data(const Options& options, int rank) {
  std::mt19937 shared(1);
  std::mt19937 own(static_cast<unsigned>(rank) + 2);
  const double of_all = options.density * options.common;
  const double of_one = options.density - of_all;
  const auto limit = [](double fraction) { return static_cast<std::uint64_t>(fraction * 0x1p32); };
  Data data;
  for (std::int64_t i = 0; i < options.count; ++i) {
    const bool everybody = shared() < limit(of_all);
    if (own() >= limit(of_one) && !everybody) continue;
    data.indices.push_back(static_cast<std::uint32_t>(i));
    data.values.push_back(static_cast<float>(own() % 1000U) - 499.5F);
  }
  return data;
}

std::int64_t sum_over_ranks(tutti::Communicator& comm, std::int64_t value) {
  comm.all_reduce(tutti::View(&value, 1, tutti::DType::i64));
  return value;
}

/** Bytes of this rank's packet, sent to each rank of the other hosts. */
std::int64_t flat_bytes(const Options& options, const Data& data) {
  tutti::PacketWriter writer;
  writer.clear();
  writer.begin_packet(0);
  for (std::size_t i = 0; i < data.indices.size(); ++i) {
    writer.add(data.indices[i], data.values[i]);
  }
  return writer.end_packet().bytes * (options.hosts - 1) * options.ranks_each;
}

bool measure(const Options& options, const std::string& forced) {
  ::setenv("TUTTI_SPARSE", forced.c_str(), 1);
  tutti::Communicator comm;
  const Data data = make_data(options, comm.global_rank());
  const auto size = static_cast<std::size_t>(options.count);
  std::vector<float> out(size);
  std::vector<double> times;
  tutti::SparseStats stats;
  for (int run = 0; run < options.runs + 1; ++run) {  // the first measures the wire
    comm.barrier();
    const auto start = Clock::now();
    comm.sparse_all_reduce(data.view(), tutti::View(std::span(out)), {}, {}, &stats);
    const std::chrono::duration<double, std::milli> took = Clock::now() - start;
    if (run > 0) times.push_back(took.count());
  }
  std::vector<float> dense(size);
  for (std::size_t i = 0; i < data.indices.size(); ++i) dense[data.indices[i]] = data.values[i];
  comm.all_reduce(tutti::View(std::span(dense)));
  const bool same = std::memcmp(dense.data(), out.data(), size * sizeof(float)) == 0;
  const bool checked = sum_over_ranks(comm, same ? 0 : 1) == 0;

  const std::int64_t between = sum_over_ranks(comm, stats.bytes_between);
  const std::int64_t flat = sum_over_ranks(comm, flat_bytes(options, data));
  const std::int64_t fp32 = std::int64_t{2} * (options.hosts - 1) * options.count * 4;
  if (comm.global_rank() == 0) {
    std::nth_element(times.begin(), times.begin() + options.runs / 2, times.end());
    std::printf(
        "{\"hosts\": \"%dx%d\", \"n\": %lld, \"density\": %g, \"common\": %g, \"asked\": \"%s\", "
        "\"algorithm\": \"%s\", \"bytes_between\": %lld, \"fp32_bytes\": %lld, \"fp32_ratio\": "
        "%.1f, \"flat_bytes\": %lld, \"of_flat\": %.3f, \"ms\": %.1f, \"checked\": %s}\n",
        options.hosts, options.ranks_each, static_cast<long long>(options.count), options.density,
        options.common, forced.c_str(), std::string(name_of(stats.algorithm)).c_str(),
        static_cast<long long>(between), static_cast<long long>(fp32),
        static_cast<double>(fp32) / static_cast<double>(between), static_cast<long long>(flat),
        static_cast<double>(between) / static_cast<double>(flat),
        times[static_cast<std::size_t>(options.runs) / 2], checked ? "true" : "false");
    std::fflush(stdout);
  }
  return checked;
}

/** "HxP": hosts, and ranks on each. */
void parse_hosts(const std::string& text, Options& options) {
  const std::size_t cross = text.find('x');
  if (cross == std::string::npos) {
    throw tutti::InvalidArgument("--hosts has '" + text + "', but must be such as 3x2");
  }
  options.hosts = tutti::bench::number_of("--hosts", text.substr(0, cross), 2);
  options.ranks_each = tutti::bench::number_of("--hosts", text.substr(cross + 1), 1);
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    const std::string name = argv[i];
    if (i + 1 == argc) throw tutti::InvalidArgument(name + " has no value");
    const std::string value = argv[i + 1];
    if (name == "--hosts") {
      parse_hosts(value, options);
    } else if (name == "--n") {
      options.count = tutti::bench::count_of(name, value);
    } else if (name == "--density") {
      options.density = tutti::bench::positive_of(name, value, 1.0);
    } else if (name == "--common") {
      options.common = tutti::bench::number_of(name, value, 0.0, 1.0);
    } else if (name == "--runs") {
      options.runs = tutti::bench::number_of(name, value, 1);
    } else {
      throw tutti::InvalidArgument("unknown option " + name);
    }
  }
  return options;
}

/** Runs this program again on every rank. Returns only if that fails. */
void start_ranks(const Options& options, int argc, char** argv) {
  const std::string ranks = std::to_string(options.hosts * options.ranks_each);
  std::vector<std::string> words{"mpiexec", "--oversubscribe", "--bind-to", "none", "-n", ranks};
  words.insert(words.end(), argv, argv + argc);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  std::perror("cannot start mpiexec");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const Options options = parse(argc, argv);
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    if (rank == nullptr) {
      start_ranks(options, argc, argv);
      return 1;
    }
    const int host = tutti::bench::number_of("OMPI_COMM_WORLD_RANK", rank, 0) / options.ranks_each;
    ::setenv("TUTTI_HOST_ID", std::to_string(host).c_str(), 1);
    bool good = true;
    for (const char* forced : {"auto", "gather", "split", "dense"}) {
      good = measure(options, forced) && good;
    }
    return good ? 0 : 1;
  } catch (const tutti::InvalidArgument& error) {
    std::fprintf(
        stderr,
        "sparse_bench: %s\n"
        "usage: sparse_bench [--hosts HxP] [--n N] [--density D] [--common F] [--runs R]\n",
        error.what());
    return 2;
  }
}
